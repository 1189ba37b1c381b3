"""The Triton kernels that are written by hand. Imported where they are launched: Triton is an optional package."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attention_kernel(
    query, key, mean, var, mask, out_mean, out_var,
    qb, qh, ql, qd, kb, kh, kl, kd, vb, vh, vl, vd, sb, sh, sl, sd, ob, oh, ol, od, pb, ph, pl, pd, mb, mh, ml, mk,
    scale, heads, group, length, keys, size, values, spreads, asked,
    WIDTH: tl.constexpr, VALUES: tl.constexpr, SPREADS: tl.constexpr, MASK: tl.constexpr, ALIKE: tl.constexpr,
    CAUSAL: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head; A ⊙ A has the same running maximum as A, twice.

    What is averaged by A ⊙ A has ``spreads`` columns: as many as values, or fewer where variances are factored. The
    first ``asked`` of them leave.
    """
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    batch, head = batch.to(tl.int64), head.to(tl.int64)
    shared = head // group
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    width, columns, features = tl.arange(0, WIDTH), tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    spread = tl.arange(0, SPREADS)
    row, within, kept = rows[:, None] < length, width[None, :] < size, features[None, :] < values
    had = spread[None, :] < spreads
    spot = rows[:, None].to(tl.int64)
    line, asking = spot, row
    if ALIKE:  # the mask of one query is that of all
        line, asking = tl.zeros([1, 1], tl.int64), tl.full([1, 1], 1, tl.int1)
    q = tl.load(query + batch * qb + head * qh + spot * ql + width[None, :] * qd, mask=row & within, other=0.0)
    first = tl.zeros([ROWS, VALUES], tl.float32)
    second = tl.zeros([ROWS, SPREADS], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    last = keys
    if CAUSAL:
        last = tl.minimum(keys, (tl.program_id(0) + 1) * ROWS)
    for start in range(0, last, COLUMNS):
        at = start + columns
        inside = at[:, None] < keys
        far = at.to(tl.int64)
        k = tl.load(
            key + batch * kb + shared * kh + far[:, None] * kl + width[None, :] * kd, mask=inside & within, other=0.0
        )
        v = tl.load(
            mean + batch * vb + shared * vh + far[:, None] * vl + features[None, :] * vd, mask=inside & kept, other=0.0
        )
        s = tl.load(
            var + batch * sb + shared * sh + far[:, None] * sl + spread[None, :] * sd, mask=inside & had, other=0.0
        ).to(v.dtype)
        if EXACT:
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        else:
            scores = tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634)
        seen = (at[None, :] < keys) & row
        if CAUSAL:
            seen = seen & (at[None, :] <= rows[:, None])
        if MASK != 0:
            places = mask + batch * mb + head * mh + line * ml + far[None, :] * mk
            given = tl.load(places, mask=(at[None, :] < keys) & asking, other=0)
            if MASK == 1:
                seen = seen & (given != 0)
            else:
                scores += given.to(tl.float32) * 1.4426950408889634
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(top - safe)
        total = total * shrink + tl.sum(weight, 1)
        if EXACT:
            first = first * shrink[:, None] + tl.dot(weight, v, input_precision="ieee")
            second = second * (shrink * shrink)[:, None] + tl.dot(weight * weight, s, input_precision="ieee")
        else:
            first = first * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
            second = second * (shrink * shrink)[:, None] + tl.dot((weight * weight).to(s.dtype), s)
        top = higher
    norm = tl.where(total > 0, 1.0 / total, 0.0)
    where = batch * ob + head * oh + spot * ol + features[None, :] * od
    tl.store(out_mean + where, (first * norm[:, None]).to(out_mean.dtype.element_ty), mask=row & kept)
    where = batch * pb + head * ph + spot * pl + spread[None, :] * pd
    leaves = spread[None, :] < asked
    tl.store(out_var + where, (second * (norm * norm)[:, None]).to(out_var.dtype.element_ty), mask=row & leaves)


@triton.jit
def extend(x, more, added, total, inside):
    """x plus what there is more of it, rounded as it is written."""
    x = (x + tl.load(more, mask=added, other=0.0).to(tl.float32)).to(total.dtype.element_ty)
    tl.store(total, x, mask=inside)
    return x.to(tl.float32)


@triton.jit
def norm_kernel(
    mean, var, more_mean, more_var, log_alpha, weight, weight_var, bias, bias_var,
    out_mean, out_var, total_mean, total_var, columns, both, scales, rows, size, eps,
    KEPT: tl.constexpr, EIGHT: tl.constexpr, SHARES: tl.constexpr, LARGEST: tl.constexpr,
    MORE: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, CENTRED: tl.constexpr, EXPECTED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some rows. ``WEIGHT`` and ``BIAS``: 0 if there is none, 1 if it is certain, 2 if it is random.

    The variance is written if it is ``KEPT``, and its 8 bits if they are asked for.
    """
    column = tl.arange(0, BLOCK)[None, :]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    kept = column < size
    inside, at = (row < rows) & kept, row * size + column
    x = tl.load(mean + at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(var + at, mask=inside, other=0.0).to(tl.float32)
    if MORE:
        x = extend(x, more_mean + at, inside, total_mean + at, inside)
        v = extend(v, more_var + at, inside, total_var + at, inside)
    v = v * tl.exp(tl.load(log_alpha).to(tl.float32))
    if CENTRED:
        x = tl.where(inside, x - tl.sum(x, 1)[:, None] / size, 0.0)
        average = tl.sum(v, 1)[:, None] / size
        v = tl.where(inside, (1.0 - 2.0 / size) * v + average / size, 0.0)
    statistic = x * x
    if EXPECTED:
        statistic += v
    factor = tl.rsqrt(tl.sum(statistic, 1)[:, None] / size + eps)
    y = x * factor
    w = v * factor * factor
    if WEIGHT != 0:
        g = tl.load(weight + column, mask=kept, other=0.0).to(tl.float32)
        if WEIGHT == 2:
            gv = tl.load(weight_var + column, mask=kept, other=0.0).to(tl.float32)
            w = w * (g * g + gv) + y * y * gv
        else:
            w = w * g * g
        y = y * g
    if BIAS != 0:
        y += tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)
        if BIAS == 2:
            w += tl.load(bias_var + column, mask=kept, other=0.0).to(tl.float32)
    mean_of_y, var_of_y = y.to(out_mean.dtype.element_ty), w.to(out_var.dtype.element_ty)
    tl.store(out_mean + at, mean_of_y, mask=inside)
    if KEPT:
        tl.store(out_var + at, var_of_y, mask=inside)
    if EIGHT:
        quantize(mean_of_y, var_of_y, columns, both, scales, row, column, rows, size, SHARES, LARGEST)


@triton.jit
def quantize(
    mean, var, columns, both, scales, row, column, rows, size, SHARES: tl.constexpr, LARGEST: tl.constexpr
):  # fmt: skip
    """[Σ, μ²] ⊙ columns, as 8-bit numbers times a scale for each row. With ``SHARES``, of μ² only the sum.

    It is spread over so many columns: four digits, a quarter of the columns for each. A digit is the first four bits of
    what is left, all that 8-bit numbers hold.
    """
    kept, live, x = column < size, row < rows, mean.to(tl.float32)
    v = var.to(tl.float32) * tl.load(columns + column, mask=kept, other=0.0)
    if SHARES:
        left = tl.sum(tl.where(kept, x * x, 0.0), 1)[:, None] * tl.load(columns + size)
        largest, width = tl.maximum(tl.max(v, 1)[:, None], left * (4 / SHARES)), size + SHARES
    else:
        w = x * x * tl.load(columns + size + column, mask=kept, other=0.0)
        largest, width = tl.max(tl.maximum(v, w), 1)[:, None], 2 * size
    scale = tl.maximum(largest / LARGEST, 1e-30)
    tl.store(scales + row, scale, mask=live)
    small, at, inside = 1.0 / scale, both + row * width + column, live & kept
    tl.store(at, dither(v * small, column).to(both.dtype.element_ty), mask=inside)
    if SHARES:
        left *= small
        at = both + row * width + size + tl.arange(0, SHARES // 4)[None, :]
        for j in tl.static_range(4):
            digit = ((left * (4 / SHARES)).to(tl.int32, bitcast=True) & -0x100000).to(tl.float32, bitcast=True)
            tl.store(at + j * (SHARES // 4), digit.to(both.dtype.element_ty), mask=live)
            left -= digit * (SHARES // 4)
    else:
        tl.store(at + size, dither(w * small, column + size).to(both.dtype.element_ty), mask=inside)


@triton.jit
def dither(x, column):
    """x and up to half a step more or less: three digits follow its first, but for x < 2⁻⁶ (golden ratio · 2²⁰)."""
    part = ((column * 648055) & 0xFFFFF) - 0x80000
    normal = tl.maximum(x, 0.015625)
    moved = (normal.to(tl.int32, bitcast=True) + part).to(tl.float32, bitcast=True)
    return tl.maximum(x + (moved - normal), 0.0)


@triton.jit
def contract_kernel(
    mean, other, by_other, by_square, out, rows, size, width, stride, step,
    OTHER: tl.constexpr, SQUARE: tl.constexpr, OTHERS: tl.constexpr, SQUARES: tl.constexpr, ONES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some rows. ``OTHERS`` and ``SQUARES``: powers of two that hold the ``OTHER`` and ``SQUARE`` sums."""
    count = OTHER + SQUARE + ONES
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    column = tl.arange(0, BLOCK)
    if OTHER > 0:
        k = tl.arange(0, OTHERS)
        total = tl.zeros([ROWS, OTHERS], tl.float32)
        for start in range(0, width, BLOCK):
            at = start + column
            places = other + row[:, None] * stride + at[None, :] * step
            x = tl.load(places, mask=live[:, None] & (at < width)[None, :], other=0.0).to(tl.float32)
            given = (k < OTHER)[:, None] & (at < width)[None, :]
            by = tl.load(by_other + k[:, None] * width + at[None, :], mask=given, other=0.0).to(tl.float32)
            total += tl.sum(x[:, None, :] * by[None, :, :], 2)
        tl.store(out + row[:, None] * count + k[None, :], total, mask=live[:, None] & (k < OTHER)[None, :])
    if SQUARE > 0:
        k = tl.arange(0, SQUARES)
        parts = tl.zeros([ROWS, SQUARES, BLOCK], tl.float32)
        for start in range(0, size, BLOCK):
            at = start + column
            places = mean + row[:, None] * size + at[None, :]
            x = tl.load(places, mask=live[:, None] & (at < size)[None, :], other=0.0).to(tl.float32)
            given = (k < SQUARE)[:, None] & (at < size)[None, :]
            by = tl.load(by_square + k[:, None] * size + at[None, :], mask=given, other=0.0).to(tl.float32)
            parts += (x * x)[:, None, :] * by[None, :, :]
        total = tl.sum(parts, 2)
        tl.store(out + row[:, None] * count + OTHER + k[None, :], total, mask=live[:, None] & (k < SQUARE)[None, :])
    if ONES:
        tl.store(out + row * count + OTHER + SQUARE, tl.full([ROWS], 1.0, tl.float32), mask=live)


@triton.jit
def sum_up(
    c, square, by_numbers, by_square, out, terms, size, held, kept, live,
    OTHER: tl.constexpr, SQUARE: tl.constexpr, MORE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Σ_k c[k] by_numbers[j, k] for each j, then Σ_d square[d] by_square[j, d], then 1 if there is more."""
    for j in tl.static_range(OTHER):
        by = tl.load(by_numbers + j * terms, mask=held, other=0.0).to(tl.float32)
        tl.store(out + j, tl.sum(c * by, 1)[:, None], mask=live)
    for j in tl.static_range(SQUARE):
        by = tl.load(by_square + j * size, mask=kept, other=0.0).to(tl.float32)
        tl.store(out + OTHER + j, tl.sum(square * by, 1)[:, None], mask=live)
    if MORE:
        tl.store(out + OTHER + SQUARE, tl.full([ROWS, 1], 1.0, tl.float32), mask=live)


@triton.jit
def token_norm_kernel(
    mean, numbers, more_numbers, more_mean, log_alpha, sums, weight, weight_var, bias, by_numbers, by_square,
    out_mean, out_numbers, total_mean, joint, rows, size, first, terms, stride, step, more_stride, more_step, eps,
    ADDED: tl.constexpr, SCALED: tl.constexpr, JOINED: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, ONES: tl.constexpr, CENTRED: tl.constexpr, TERMS: tl.constexpr,
    OTHER: tl.constexpr, SQUARE: tl.constexpr, MORE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some rows of ``norm_kernel`` whose variance is factored: their numbers have the square of a row's scale.

    With ``OTHER`` or ``SQUARE``, these many sums over numbers and squares of the mean leave in place of the numbers.
    """
    column, k = tl.arange(0, BLOCK)[None, :], tl.arange(0, TERMS)[None, :]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    live, kept, held = row < rows, column < size, k < terms
    inside, at = live & kept, row * size + column
    x = tl.load(mean + at, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(numbers + row * stride + k * step, mask=live & (k < first), other=0.0).to(tl.float32)
    if JOINED:
        there, beyond = more_numbers + row * more_stride + (k - first) * more_step, live & held & (k >= first)
        c = extend(c, there, beyond, joint + row * terms + k, live & held)
    if ADDED:
        x = extend(x, more_mean + at, inside, total_mean + at, inside)
    if SCALED:
        c = c * tl.exp(tl.load(log_alpha).to(tl.float32))
    s = tl.load(sums + k, mask=held, other=0.0).to(tl.float32)
    if CENTRED:
        x = tl.where(inside, x - tl.sum(x, 1)[:, None] / size, 0.0)
    factor = tl.rsqrt((tl.sum(x * x, 1) + tl.sum(c * s, 1))[:, None] / size + eps)
    y = x * factor
    c = c * factor * factor
    count = terms
    if WEIGHT == 2:
        gv = tl.load(weight_var + column, mask=kept, other=0.0).to(tl.float32)
        c = tl.where(k == count, tl.sum(y * y * gv, 1)[:, None], c)
        count += 1
    if ONES:
        c = tl.where(k == count, 1.0, c)
        count += 1
    if WEIGHT != 0:
        y = y * tl.load(weight + column, mask=kept, other=0.0).to(tl.float32)
    if BIAS:
        y += tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)
    result = y.to(out_mean.dtype.element_ty)
    tl.store(out_mean + at, result, mask=inside)
    if OTHER + SQUARE == 0:
        tl.store(out_numbers + row * count + k, c, mask=live & (k < count))
    square = tl.where(inside, result.to(tl.float32) * result.to(tl.float32), 0.0)
    out = out_numbers + row * (OTHER + SQUARE + MORE)
    sum_up(
        c, square, by_numbers + k, by_square + column, out, count, size, k < count, kept, live,
        OTHER, SQUARE, MORE, ROWS,
    )  # fmt: skip


@triton.jit
def quantize_kernel(
    mean, var, columns, both, scales, rows, size,
    SHARES: tl.constexpr, LARGEST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``quantize``, of some rows."""
    column = tl.arange(0, BLOCK)[None, :]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    inside, at = (row < rows) & (column < size), row * size + column
    x, v = tl.load(mean + at, mask=inside, other=0.0), tl.load(var + at, mask=inside, other=0.0)
    quantize(x, v, columns, both, scales, row, column, rows, size, SHARES, LARGEST)
