"""Factored variances on an accelerator: a few numbers of each token, computed in one pass over what they sum up."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.kernels.custom_op import registered
from varprop.kernels.flash import arguments_of
from varprop.kernels.float8 import spread_form
from varprop.kernels.launch import LONGEST_ROW, at_least_16, on, tile, usable
from varprop.kernels.norm_op import tile_for
from varprop.moments import Factored, Moments, is_random, mean_of
from varprop.rules import attention, factored_layers
from varprop.rules.factored_layers import Apply
from varprop.rules.factorization import LEAST, tokens_of
from varprop.rules.ruleset import Backend

TILE = 8, 256, 2  # rows, columns, warps
MOST_SUMS, MOST_TERMS = 16, 512


# --- sums over features ----------------------------------------------------------------------------------


def contract_reference(
    mean: Tensor, other: Tensor | None, by_other: Tensor | None, by_square: Tensor | None, ones: bool
) -> Tensor:
    """Σ_d other[d] by_other[k, d], Σ_d mean[d]² by_square[k, d], and 1 if asked for: numbers of each token.

    In float32, or what is wider.
    """
    wide = torch.promote_types(mean.dtype, torch.float32)
    parts = [] if other is None or by_other is None else [F.linear(other.to(wide), by_other.to(wide))]
    if by_square is not None:
        parts.append(F.linear(mean.to(wide).square(), by_square.to(wide)))
    if ones:
        parts.append(torch.ones_like(parts[0][..., :1]))
    return torch.cat(parts, -1)


def numbers_of(mean: Tensor, count: int) -> Tensor:
    """Memory for ``count`` numbers of each token."""
    return mean.new_empty((*mean.shape[:-1], count), dtype=torch.promote_types(mean.dtype, torch.float32))


def counts_of(*vectors: Tensor | None) -> list[int]:
    return [0 if x is None else x.shape[0] for x in vectors]


def _contract_fits(*arguments: Any) -> bool:
    mean, tensors = arguments[0], [x for x in arguments if isinstance(x, Tensor)]
    return usable(*tensors) and mean.numel() > 0 and max(counts_of(*arguments[2:4])) <= MOST_SUMS


def _contract_outline(mean: Tensor, other: Any, by_other: Any, by_square: Any, ones: bool) -> Tensor:
    return numbers_of(mean, sum(counts_of(by_other, by_square)) + ones)


def _launch_contract(
    mean: Tensor, other: Tensor | None, by_other: Tensor | None, by_square: Tensor | None, ones: bool
) -> Tensor:
    from varprop.kernels.triton_kernels import contract_kernel

    size, tokens = mean.shape[-1], mean.numel() // mean.shape[-1]
    counts = counts_of(by_other, by_square)
    out = numbers_of(mean, sum(counts) + ones)
    given = mean if other is None else other.reshape(tokens, -1)
    vectors = [mean if x is None else x.contiguous() for x in (by_other, by_square)]
    rows, block, warps = tile(tokens, TILE)
    with on(mean.device):
        contract_kernel[(-(-tokens // rows),)](
            mean.contiguous(), given, *vectors, out, tokens, size, given.shape[-1], *given.stride()[-2:],
            OTHER=counts[0], SQUARE=counts[1], OTHERS=_power(counts[0]), SQUARES=_power(counts[1]), ONES=int(ones),
            ROWS=rows, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return out


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


contracted = registered("contract", contract_reference, _launch_contract, _contract_fits, _contract_outline)


# --- norms -----------------------------------------------------------------------------------------------


def norm_reference(
    mean: Tensor,
    numbers: Tensor,
    sums: Tensor,
    weight: Tensor | None,
    weight_var: Tensor | None,
    bias: Tensor | None,
    eps: float,
    centred: bool,
    ones: bool,
    by_numbers: Tensor | None,
    by_square: Tensor | None,
    more: bool,
    more_mean: Tensor | None,
    log_alpha: Tensor | None,
    more_numbers: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A norm over features of x ~ N(mean, Σ_k numbers[k] v_k), ``sums[k]`` = Σ_d v_k: its mean, and the numbers of v_k,
    of the variance of ``weight`` and, if asked for, of that of the bias; or, in their place, what ``contract`` makes of
    both. If there is more to the mean, it is the norm of the sum, which is returned too, and if there are more numbers,
    of all of them side by side, likewise; α scales the numbers.

    In float32, or what is wider.
    """
    wide = torch.promote_types(mean.dtype, torch.float32)
    total_mean, joint = mean.new_empty(0), numbers.new_empty(0)
    if more_mean is not None:
        mean = total_mean = mean + more_mean
    if more_numbers is not None:
        numbers = joint = torch.cat([numbers, more_numbers], -1)
    x, c = mean.to(wide), numbers.to(wide)
    c = c if log_alpha is None else c * log_alpha.to(wide).exp()
    x = x - x.mean(-1, keepdim=True) if centred else x
    total = x.square().sum(-1, keepdim=True) + (c * sums.to(wide)).sum(-1, keepdim=True)
    factor = torch.rsqrt(total / x.shape[-1] + eps)
    y, parts = x * factor, [c * factor.square()]
    if weight_var is not None:
        parts.append((y.square() * weight_var.to(wide)).sum(-1, keepdim=True))
    if ones:
        parts.append(torch.ones_like(factor))
    y = y if weight is None else y * weight.to(wide)
    y, results = (y if bias is None else y + bias.to(wide)).to(mean.dtype), torch.cat(parts, -1)
    if by_numbers is not None or by_square is not None:
        results = contract_reference(y, results, by_numbers, by_square, more)
    return y, results, total_mean, joint


def _norm_fits(*arguments: Any) -> bool:
    mean, _, sums = arguments[:3]
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    return usable(*tensors) and 0 < mean.shape[-1] <= LONGEST_ROW and len(sums) <= MOST_TERMS and mean.numel() > 0


def _norm_outline(mean: Tensor, numbers: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, _, weight_var, *_, ones, by_numbers, by_square, more, more_mean, _, more_numbers = rest
    terms, counts = sum(x.shape[-1] for x in (numbers, more_numbers) if x is not None), counts_of(by_numbers, by_square)
    # int: torch 2.11 cannot add a free number of terms and a bool.
    count = sum(counts) + int(more) if any(counts) else terms + int(weight_var is not None) + int(ones)
    total = mean.new_empty(0 if more_mean is None else mean.shape)
    joint = numbers.new_empty(0 if more_numbers is None else (*numbers.shape[:-1], terms))
    return mean.new_empty(mean.shape), numbers_of(mean, count), total, joint


def _launch_norm(mean: Tensor, numbers: Tensor, sums: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from varprop.kernels.triton_kernels import token_norm_kernel

    weight, weight_var, bias, eps, centred, ones, by_numbers, by_square, more, *optional, more_numbers = rest
    size = mean.shape[-1]
    tokens, block = mean.numel() // size, at_least_16(size)
    kind = 0 if weight is None else 1 if weight_var is None else 2
    results = _norm_outline(mean, numbers, sums, *rest)
    given = [x.reshape(tokens, -1) for x in (numbers, numbers if more_numbers is None else more_numbers)]
    first, terms = given[0].shape[1], sum(x.shape[1] for x in given[: 1 if more_numbers is None else 2])
    added = [mean if x is None else x.contiguous() for x in optional]
    vectors = [mean if x is None else x.contiguous() for x in (sums, weight, weight_var, bias, by_numbers, by_square)]
    counts = counts_of(by_numbers, by_square)
    rows, warps = tile_for(tokens, block)
    with on(mean.device):
        token_norm_kernel[(-(-tokens // rows),)](
            mean.contiguous(), *given, *added, *vectors, *results, tokens, size, first, terms,
            *given[0].stride(), *given[1].stride(), eps,
            ADDED=int(optional[0] is not None), SCALED=int(optional[1] is not None), JOINED=int(terms > first),
            WEIGHT=kind, BIAS=int(bias is not None), ONES=int(ones), CENTRED=centred, TERMS=at_least_16(terms + 2),
            OTHER=counts[0], SQUARE=counts[1], MORE=int(more and any(counts)), ROWS=rows,
            BLOCK=block, num_warps=max(1, warps // rows),
        )  # fmt: skip
    return results


normalized = registered("token_norm", norm_reference, _launch_norm, _norm_fits, _norm_outline)


# --- the steps of rules ----------------------------------------------------------------------------------


def _contract_form(
    apply: Apply, x: Any, by_var: Tensor | None, by_square: Tensor | None, ones: bool, feature: int
) -> Tensor:
    if feature != -1:
        return factored_layers.contract(apply, x, by_var, by_square, ones, feature)
    other, by = (x.var, by_var) if isinstance(x, Moments) and by_var is not None else (None, None)
    if isinstance(x, Factored) and by_var is not None:
        if (found := tokens_of(x)) is None:
            other, by = x.var, by_var
        else:
            other, by = found[0], F.linear(by_var, found[1])
    return torch.ops.varprop.contract(mean_of(x), other, by, by_square, ones)


def _normalize_form(x: Factored, weight: Any, bias: Any, eps: Any, *, centred: bool) -> Any:
    found = tokens_of(x)
    if found is None or not isinstance(eps, float):
        return factored_layers.normalize(x, weight, bias, eps, centred=centred)
    vectors = factored_layers.centred_var(found[1]) if centred else found[1]
    noise = weight.var if is_random(weight) else None
    mean, numbers, *_ = torch.ops.varprop.token_norm(
        x.mean, found[0], vectors.sum(-1), mean_of(weight), noise, mean_of(bias), eps, centred, is_random(bias),
        None, None, False, None, None, None,
    )  # fmt: skip
    square = None if weight is None else mean_of(weight).square() if noise is None else mean_of(weight) ** 2 + noise
    rows = [vectors if square is None else vectors * square]
    rows += [] if noise is None else [(noise / noise.sum().clamp_min(LEAST))[None]]
    rows += [bias.var[None]] if is_random(bias) else []
    shape = (-1, *[1] * (x.mean.ndim - 1), x.mean.shape[-1])
    return Factored(mean, numbers.movedim(-1, 0)[..., None], torch.cat(rows).reshape(shape))


def _attend_form(query: Tensor, key: Tensor, value: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_random(value) or query.ndim != 4:
        return attention.attention(query, key, value, *args, **kwargs)
    return Moments(*torch.ops.varprop.attention(*arguments_of(query.shape[-1], query, key, value, *args, **kwargs)))


FUSED = Backend(spread_form, _contract_form, _normalize_form, _attend_form)
