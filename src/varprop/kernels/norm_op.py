"""Norms over the last dimension, both moments in one pass over a row."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from varprop.kernels import float8
from varprop.kernels.custom_op import registered
from varprop.kernels.launch import FEW, LONGEST_ROW, at_least_16, on, usable
from varprop.moments import Moments
from varprop.rules import functions, streamlining
from varprop.rules.normalization import NORMALIZATION, scale_and_shift


class Results(NamedTuple):
    """Of a norm; what is not asked for is empty."""

    mean: Tensor
    var: Tensor
    total_mean: Tensor
    total_var: Tensor
    spread: Tensor


def reference(
    mean: Tensor,
    var: Tensor,
    log_alpha: Tensor,
    weight: Tensor | None,
    weight_var: Tensor | None,
    bias: Tensor | None,
    bias_var: Tensor | None,
    eps: float,
    centred: bool,
    expected: bool,
    more_mean: Tensor | None,
    more_var: Tensor | None,
    weights: Tensor | None,
    rows: Tensor | None,
    columns: Tensor | None,
    added: Tensor | None,
    kept: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """LayerNorm (``centred``) or RMSNorm of x ~ N(mean, α var); if there is more, of the sum, which is returned too.

    The rules themselves; ``expected``: the statistic is E[x²], else that of the mean. With packed weights of a layer,
    the variance behind the layer comes last, and that of the norm itself if it is to be kept.
    """
    totals = mean.new_empty(0), var.new_empty(0)
    if more_mean is not None and more_var is not None:
        mean, var = totals = mean + more_mean, var + more_var
    rules = NORMALIZATION if expected else streamlining.NORMALIZATION
    rule = rules[functions.standardize if centred else functions.rms_normalize]
    gamma, beta = (
        None if m is None else m if v is None else Moments(m, v) for m, v in ((weight, weight_var), (bias, bias_var))
    )
    y = scale_and_shift(rule(Moments(mean, var * log_alpha.exp()), (-1,), eps), gamma, beta)
    if weights is None or rows is None or columns is None:
        return Results(y.mean, y.var, *totals, mean.new_empty(0))
    behind = float8.reference(y.mean, y.var, weights, rows, columns, added)
    return Results(y.mean, y.var if kept else y.var.new_empty(0), *totals, behind)


def _fits(mean: Tensor, var: Tensor, *rest: Any) -> bool:
    *given, weights, _, _, _, _ = rest
    fits = usable(mean, var, *(x for x in given if isinstance(x, Tensor))) and (weights is None or float8.suits(mean))
    return fits and mean.shape == var.shape and 0 < mean.shape[-1] <= LONGEST_ROW and mean.numel() > 0


def _outline(mean: Tensor, var: Tensor, *rest: Any) -> Results:
    *_, more, weights, _, _, _, kept = rest
    size = mean.shape if more is not None else (0,)
    return Results(
        mean.new_empty(mean.shape),
        var.new_empty(mean.shape if kept else (0,)),
        mean.new_empty(size),
        var.new_empty(size),
        mean.new_empty((0,) if weights is None else (*mean.shape[:-1], weights.shape[0])),
    )


def _launch(mean: Tensor, var: Tensor, log_alpha: Tensor, *rest: Any) -> Results:
    from varprop.kernels.triton_kernels import norm_kernel

    weight, weight_var, bias, bias_var, eps, centred, expected, *more, weights, rows, columns, added, kept = rest
    size = mean.shape[-1]
    results = _outline(mean, var, *rest[:-5], None, *rest[-4:])
    numbers = float8.Numbers(mean, mean) if weights is None else float8.Numbers.empty(mean, weights)
    mean = mean.contiguous()
    terms = [mean if x is None else x.contiguous() for x in more]
    vectors = [mean if x is None else x.contiguous() for x in (weight, weight_var, bias, bias_var)]
    tokens, block = mean.numel() // size, at_least_16(size)
    at_once, warps = tile_for(tokens, block)
    with on(mean.device):
        norm_kernel[(-(-tokens // at_once),)](
            mean, var.contiguous(), *terms, log_alpha, *vectors, *results[:4],
            mean if columns is None else columns, *numbers, tokens, size, eps,
            KEPT=kept, EIGHT=weights is not None, SHARES=0 if weights is None else float8.shares_of(weights, size),
            LARGEST=float8.LARGEST,
            MORE=int(more[-1] is not None), WEIGHT=_kind(weight, weight_var), BIAS=_kind(bias, bias_var),
            CENTRED=centred, EXPECTED=expected, ROWS=at_once, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    if weights is None:
        return results
    return results._replace(spread=float8.multiply(numbers, weights, rows, added, mean))


def tile_for(tokens: int, block: int) -> tuple[int, int]:
    """Rows of a program, which share what is read of the weights, and warps; few rows are spread over many."""
    if tokens <= FEW or block > 2048:
        return 1, min(16, max(1, block // 256))
    return 2, max(1, block // 512)


def _kind(mean: Tensor | None, var: Tensor | None) -> int:
    return 0 if mean is None else 1 if var is None else 2


normalize = registered("norm", reference, _launch, _fits, _outline)
