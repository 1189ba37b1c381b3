"""Sums and means, maxima, and the ops at which variance ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of
from varprop.rules.arithmetic import moments, negate
from varprop.rules.gaussian import cdf, floored, pdf
from varprop.rules.ruleset import Op, Rule, RuleSet, rule
from varprop.rules.structural import mean_args

aten = torch.ops.aten


@rule(aten.sum.default, aten.sum.dim_IntList)
def total(x: Moments, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Moments:
    """Σ_i x_i: variances add. Exact."""
    if dim is None:
        return Moments(x.mean.sum(dtype=dtype), x.var.sum(dtype=dtype))
    return Moments(x.mean.sum(dim, keepdim, dtype=dtype), x.var.sum(dim, keepdim, dtype=dtype))


@rule(aten.mean.default, aten.mean.dim)
def average(x: Moments, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Moments:
    """(1/n) Σ_i x_i: Σ = (1/n²) Σ_i v_i. Exact."""
    if dim is None:
        return Moments(x.mean.mean(dtype=dtype), x.var.mean(dtype=dtype) / x.mean.numel())
    mean = x.mean.mean(dim, keepdim, dtype=dtype)
    size = 1
    for d in [dim] if isinstance(dim, int) else dim:
        size = size * x.mean.shape[d]
    return Moments(mean, x.var.mean(dim, keepdim, dtype=dtype) / size)


@rule(aten.cumsum.default)
def cumulate(x: Moments, dim: int, *, dtype: torch.dtype | None = None) -> Moments:
    """Running sums: variances add. Exact."""
    return Moments(x.mean.cumsum(dim, dtype=dtype), x.var.cumsum(dim, dtype=dtype))


@rule(aten.maximum.default, aten.max.other)
def maximum(x: Any, y: Any) -> Moments:
    """max(x, y) of two independent Gaussians (Clark). With θ² = v₁ + v₂, a = (μ₁ − μ₂)/θ, s(a) = φ(a) + a Φ(a):

    μ = μ₂ + θ s(a)        Σ = v₁ Φ(a) + v₂ Φ(−a) − θ² s(a) s(−a)
    Exact. (For independent Gaussian operands; coverage says where they share a source.)
    """
    mean_x, mean_y = torch.broadcast_tensors(mean_of(x), mean_of(y))
    var_x, var_y = (part.var if is_random(part) else torch.zeros((), dtype=mean_x.dtype, device=mean_x.device) for part in (x, y))
    theta2 = (var_x + var_y).expand_as(mean_x)
    theta = floored(theta2).sqrt()
    # Beyond 40 deviations both tails vanish in any precision; the bound keeps a·Φ(a) finite.
    a = ((mean_x - mean_y) / theta).clamp(-40, 40)
    upper, lower, density = cdf(a), cdf(-a), pdf(a)
    mean = mean_x * upper + mean_y * lower + theta * density
    shared = theta2 * (density + a * upper) * (density - a * lower)
    return moments(mean, (var_x * upper + var_y * lower - shared).clamp_min(0))


@rule(aten.minimum.default, aten.min.other)
def minimum(x: Any, y: Any) -> Moments:
    """min(x, y) = −max(−x, −y). Exact. (For independent Gaussian operands; coverage says where they share a source.)"""
    return negate(maximum(*(negate(part) if is_random(part) else -part for part in (x, y))))


def tournament(entrants: list[Moments]) -> Moments:
    """The maximum of several, by rounds of pairs."""
    while len(entrants) > 1:
        pairs = zip(entrants[0::2], entrants[1::2], strict=False)
        odd = [entrants[-1]] if len(entrants) % 2 else []
        entrants = [maximum(x, y) for x, y in pairs] + odd
    return entrants[0]


def maximum_along(x: Moments, dim: int, keepdim: bool) -> Moments:
    """The maximum along a dim, by rounds of pairwise maxima of its two halves."""
    while (size := x.mean.shape[dim]) > 1:
        half = size // 2
        first, second = (Moments(*(part.narrow(dim, start, half) for part in x)) for start in (0, half))
        merged = maximum(first, second)
        if size % 2:
            last = (part.narrow(dim, size - 1, 1) for part in x)
            merged = Moments(*(torch.cat(parts, dim) for parts in zip(merged, last, strict=True)))
        x = merged
    return x if keepdim else Moments(*(part.squeeze(dim) for part in x))


@rule(aten.amax.default)
def largest(x: Moments, dim: Any = (), keepdim: bool = False) -> Moments:
    """max over dims. Approximation: pairwise Clark maxima, each taken as Gaussian."""
    dims = sorted((d % x.mean.ndim for d in ([dim] if isinstance(dim, int) else dim)), reverse=True)
    for d in dims or range(x.mean.ndim - 1, -1, -1):
        x = maximum_along(x, d, keepdim)
    return x


@rule(aten.amin.default)
def smallest(x: Moments, dim: Any = (), keepdim: bool = False) -> Moments:
    """min over dims. Approximation: pairwise Clark minima, each taken as Gaussian."""
    return negate(largest(negate(x), dim, keepdim))


@rule(aten.max.default)
def largest_of_all(x: Moments) -> Moments:
    """max over all entries. Approximation: pairwise Clark maxima, each taken as Gaussian."""
    return largest(x)


@rule(aten.max.dim)
def largest_with_index(x: Moments, dim: int, keepdim: bool = False) -> tuple[Moments, Tensor]:
    """max and argmax over a dim; the index is the mean's. Approximation: pairwise Clark maxima, each taken as Gaussian."""
    return largest(x, dim, keepdim), x.mean.max(dim, keepdim).indices


@rule(aten.min.dim)
def smallest_with_index(x: Moments, dim: int, keepdim: bool = False) -> tuple[Moments, Tensor]:
    """min and argmin over a dim; the index is the mean's. Approximation: pairwise Clark minima, each taken as Gaussian."""
    return smallest(x, dim, keepdim), x.mean.min(dim, keepdim).indices


def stops(*ops: Op) -> RuleSet:
    """Declare ops whose result is discrete: it is taken at the mean, and carries no variance."""

    def declare(op: Op) -> Rule:
        @rule(op)
        def decide(*args: Any, **kwargs: Any) -> Any:
            """A decision taken at the mean. Approximation: the variance ends here."""
            return op(*mean_args(args), **mean_args(kwargs))

        return decide

    return RuleSet(*map(declare, ops))


DISCRETE = stops(
    *(getattr(getattr(aten, name), kind) for name in ("eq", "ne", "gt", "ge", "lt", "le") for kind in ("Scalar", "Tensor")),
    aten.argmax.default,
    aten.argmin.default,
    aten.ceil.default,
    aten.floor.default,
    aten.isfinite.default,
    aten.isnan.default,
    aten.round.default,
    aten.ones_like.default,
    aten.zeros_like.default,
    aten.full_like.default,
    aten.new_ones.default,
    aten.new_zeros.default,
    aten.new_full.default,
    aten.fill.Scalar,
    aten.fill.Tensor,
)

REDUCTION = RuleSet(
    total,
    average,
    cumulate,
    DISCRETE,
    name="reduction",
)
MAXIMA = RuleSet(
    maximum,
    minimum,
    largest,
    smallest,
    largest_of_all,
    largest_with_index,
    smallest_with_index,
    name="maxima",
)
