"""Norms over the last dimension, both moments in one pass over a row."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from varprop.kernels.launch import FEW, at_least_16, attempt, on, usable
from varprop.kernels.recompute import registered
from varprop.moments import Moments
from varprop.rules import functions, streamlining
from varprop.rules.normalization import NORMALIZATION, scale_and_shift

LONGEST_ROW = 1 << 14


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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LayerNorm (``centred``) or RMSNorm of x ~ N(mean, α var); if there is more, of the sum, which is returned too.

    The rules themselves; ``expected``: the statistic is E[x²], else that of the mean.
    """
    totals = mean.new_empty(0), var.new_empty(0)
    if more_mean is not None and more_var is not None:
        mean, var = totals = mean + more_mean, var + more_var
    rules = NORMALIZATION if expected else streamlining.NORMALIZATION
    rule = rules[functions.standardize if centred else functions.rms_normalize]
    gamma, beta = (
        None if m is None else m if v is None else Moments(m, v) for m, v in ((weight, weight_var), (bias, bias_var))
    )
    return *scale_and_shift(rule(Moments(mean, var * log_alpha.exp()), (-1,), eps), gamma, beta), *totals


def _compute(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, var = arguments[:2]
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    fits = usable(*tensors) and mean.shape == var.shape and 0 < mean.shape[-1] <= LONGEST_ROW and mean.numel()
    if fits and (results := attempt("norm", lambda: _launch(*arguments))):
        return results
    return tuple(x.contiguous() for x in reference(*arguments))  # type: ignore[return-value]


def _outline(mean: Tensor, var: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _results(mean, var, rest[-1] is not None)


def _results(mean: Tensor, var: Tensor, more: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    size = mean.shape if more else (0,)
    return mean.new_empty(mean.shape), var.new_empty(mean.shape), mean.new_empty(size), var.new_empty(size)


normalize = registered("norm", reference, _compute, _outline)


def _launch(mean: Tensor, var: Tensor, log_alpha: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from varprop.kernels.tiles import norm_kernel

    weight, weight_var, bias, bias_var, eps, centred, expected, *more = rest
    size = mean.shape[-1]
    results = _results(mean, var, more[-1] is not None)
    mean = mean.contiguous()
    added = [mean if x is None else x.contiguous() for x in more]
    vectors = [mean if x is None else x.contiguous() for x in (weight, weight_var, bias, bias_var)]
    tokens, block = mean.numel() // size, at_least_16(size)
    rows, warps = tile_for(tokens, block)
    with on(mean.device):
        norm_kernel[(-(-tokens // rows),)](
            mean, var.contiguous(), *added, log_alpha, *vectors, *results, tokens, size, eps,
            MORE=int(more[-1] is not None), WEIGHT=_kind(weight, weight_var), BIAS=_kind(bias, bias_var),
            CENTRED=centred, EXPECTED=expected, ROWS=rows, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return results


def tile_for(tokens: int, block: int) -> tuple[int, int]:
    """Rows of a program, which share what is read of the weights, and warps; few rows are spread over many."""
    if tokens <= FEW or block > 2048:
        return 1, min(16, max(1, block // 256))
    return 2, max(1, block // 512)


def _kind(mean: Tensor | None, var: Tensor | None) -> int:
    return 0 if mean is None else 1 if var is None else 2
