"""Sums of squares and their roots: vector norms, sample variances, distances, cosines.

A sum of squares S of Gaussians has closed moments. Its root is that of a gamma variable with the moments of S, which is
exact for means of 0 and equal variances, and the Delta method for small variances. Streamlining drops what is of second
order in the variance, so both rule sets are made by ``vector_norm_rules``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from varprop.moments import Moments, is_random, mean_of
from varprop.rules import functions
from varprop.rules.arithmetic import add, as_moments, negate, subtract
from varprop.rules.delta import DELTA
from varprop.rules.maxima import CLARK, largest_over
from varprop.rules.normal import cast, in_float32, promote, restore
from varprop.rules.piecewise import absolute
from varprop.rules.reduction import average, dims_of
from varprop.rules.ruleset import Rule, RuleSet, rule

aten = torch.ops.aten


def sum_of_squares(x: Moments, dims: list[int], keepdim: bool, second: float) -> Moments:
    """Σ x²: mean Σ (μ² + v), var Σ 2v (2μ² + v); ``second`` is the weight of what is of second order. Exact with 1."""
    square = x.mean * x.mean
    mean, var = square + second * x.var, x.var * (4 * square + second * 2 * x.var)
    return Moments(mean.sum(dims, keepdim), var.sum(dims, keepdim))


def squared_deviation(x: Moments, dims: list[int], keepdim: bool, correction: float, second: float) -> Moments:
    """s² = Σ (x − x̄)²/(n − c), n entries. A quadratic form of Gaussians; exact with ``second`` = 1.

    mean = [Σ (μ − μ̄)² + (1 − 1/n) Σ v]/(n − c)
    var = [4 Σ (μ − μ̄)² v + 2 (1 − 2/n) Σ v² + 2 (Σ v)²/n²]/(n − c)²
    """
    n = math.prod(x.mean.shape[dim] for dim in dims)
    square = (x.mean - x.mean.mean(dims, keepdim=True)).square()
    noise = x.var.sum(dims, keepdim)
    mean = square.sum(dims, keepdim) + second * (1 - 1 / n) * noise
    spread = x.var * (4 * square + second * 2 * (1 - 2 / n) * x.var)
    var = spread.sum(dims, keepdim) + second * 2 * (noise / n).square()
    count = max(n - correction, 0)
    return Moments(mean / count, var.clamp(min=0) / count**2)


def root_of_square(s: Moments, second: float) -> Moments:
    """√S, S a gamma variable of shape k = 1/q, q = Var[S]/E[S]².

    var = E[S] (1 − Γ(k + ½)²/(k Γ(k)²)) ≈ E[S] q/(4 + q/2 + 3q²/(16 + 3.9q)), to 1e-3        mean² = E[S] − var
    """
    size = torch.where(s.mean > 0, s.mean, 1.0)
    q = s.var / size / size
    var = s.var / size / (4 + second * (q / 2 + 3 * q * q / (16 + 3.9 * q)))
    mean = torch.where(s.mean > 0, (size - second * var).sqrt(), 0.0 * s.mean)
    return Moments(mean, var)


GAMMA = "the squared length is taken as a gamma variable: exact for means of 0 and equal variances; error O(1/D)"


def sample_variance_rules(name: str, second: float, root: str | None) -> RuleSet:
    """Rules of ``var``, or of ``std`` where ``root`` says what a root neglects."""
    op, with_mean = getattr(aten, name), getattr(aten, f"{name}_mean")
    of_square = None if second else DELTA
    declare = functools.partial(rule, approximation=root or of_square, mixes=True)

    @declare(op.dim, op.correction)
    @in_float32
    def sample_variance(
        x: Moments, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
    ) -> Moments:
        """s² = Σ (x − x̄)²/(n − c), or its root; c = 1 by default."""
        count = int(unbiased) if correction is None else correction
        s = squared_deviation(x, dims_of(x.mean.ndim, dim), keepdim, count, second)
        return root_of_square(s, second) if root else s

    @declare(op.default)
    def overall(x: Moments, unbiased: bool = True) -> Moments:
        """Of all entries."""
        return sample_variance(x, None, unbiased)

    @declare(with_mean.dim, with_mean.correction)
    def sample_variance_with_mean(
        x: Moments, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
    ) -> list[Moments]:
        """The same beside the mean."""
        return [sample_variance(x, dim, unbiased, keepdim, correction=correction), average(x, dim, keepdim)]

    return RuleSet(sample_variance, overall, sample_variance_with_mean)


def _power_norm(x: Moments, order: float, dims: list[int], keepdim: bool) -> Moments:
    """y = (Σ |x|ᵖ)^(1/p), p > 1, linearised: ∂y/∂x = ±(|x|/y)ᵖ⁻¹."""
    length = torch.linalg.vector_norm(x.mean, order, dims, keepdim=True)
    slope = (x.mean.abs() / torch.where(length > 0, length, 1.0)) ** (order - 1)
    var = (slope.square() * x.var).sum(dims, keepdim)
    return Moments(length if keepdim else length.squeeze(dims), var)


def vector_norm_rules(
    second: float, over: Callable[[Moments, list[int], bool], Moments], *, root: str, many: str, name: str
) -> RuleSet:
    """Rules of lengths and spreads; ``second`` weighs what is of second order, ``root`` says what a root neglects.
    ``over`` is a maximum over dims, of which ``many`` says what it neglects.
    """

    def of_order(x: Any, ord: float = 2, *_: Any, **__: Any) -> str | None:
        if ord in (1, 2):
            return root if ord == 2 or not second else None
        return f"{many}; |x| is taken as Gaussian, too" if math.isinf(ord) else DELTA

    @in_float32
    def norm(x: Moments, ord: float, dims: list[int], keepdim: bool) -> Any:
        if ord == 2:
            return root_of_square(sum_of_squares(x, dims, keepdim, second), second)
        if ord != 1 and not math.isinf(ord):
            return _power_norm(x, ord, dims, keepdim) if ord > 1 else NotImplemented
        size = absolute(x) if second else Moments(x.mean.abs(), x.var)
        if ord == 1:
            return Moments(*(part.sum(dims, keepdim) for part in size))
        return over(size, dims, keepdim) if ord > 0 else negate(over(negate(size), dims, keepdim))

    @rule(aten.linalg_vector_norm.default, approximation=of_order, mixes=True)
    def vector_norm(
        x: Moments, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> Any:
        """‖x‖ over dims: √Σ x², Σ |x|, max |x|, min |x|, or (Σ |x|ᵖ)^(1/p) for p > 1."""
        return norm(cast(x, dtype), ord, dims_of(x.mean.ndim, dim), keepdim)

    @rule(functions.modulus, approximation=root, mixes=True, takes_complex=True)
    def modulus(z: Moments) -> Any:
        """√(a² + b²)."""
        return vector_norm(Moments(*map(torch.view_as_real, z)), 2, [-1])

    spreads = sample_variance_rules("var", second, None), sample_variance_rules("std", second, root)
    return RuleSet(vector_norm, modulus, *spreads, _distances(vector_norm), _cosine(second), name=name)


def _distances(vector_norm: Rule) -> RuleSet:
    def of_difference(x: Any, y: Any, p: float = 2, *_: Any) -> str | None:
        return vector_norm.neglects(x, p)

    @rule(aten.cdist.default, approximation=of_difference, mixes=True)
    def pairwise(x: Any, y: Any, p: float = 2.0, *_: Any) -> Any:
        """‖xᵢ − yⱼ‖ for all i, j."""
        rows = Moments(*(part.unsqueeze(-2) for part in as_moments(x)))
        columns = Moments(*(part.unsqueeze(-3) for part in as_moments(y)))
        return vector_norm(subtract(rows, columns), p, [-1])

    @rule(aten.pairwise_distance.default, approximation=of_difference, mixes=True)
    def distance(x: Any, y: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
        """‖x − y + ε‖ over the last dim."""
        return vector_norm(add(subtract(x, y), eps), p, [-1], keepdim)

    return RuleSet(pairwise, distance)


def _cosine(second: float) -> Rule:
    @rule(aten.cosine_similarity.default, approximation="the norms are frozen; error O(1/D)", mixes=True)
    def cosine_similarity(x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> Any:
        """c = Σ x̂ŷ, x̂ = x/‖x‖, the norms at E‖x‖². To second order,

        var = Σ (ŷ − c x̂)² v_x̂ + (x̂ − c ŷ)² v_ŷ + v_x̂ v_ŷ + ½ c² (v_x̂² + v_ŷ²)
        """
        like = x if is_random(x) else y
        full, _ = torch.broadcast_tensors(mean_of(x), mean_of(y))
        dim = dim % full.ndim - full.ndim
        if any(part.mean.ndim < -dim or part.mean.size(dim) != full.size(dim) for part in (x, y) if is_random(part)):
            return NotImplemented  # one entry that stands in several places
        whole = (Moments(*(part.expand_as(full) for part in as_moments(each))) for each in (x, y))
        x, y = (_unit(promote(part), dim, eps, second) for part in whole)
        c = (x.mean * y.mean).sum(dim, keepdim=True)
        var = (y.mean - c * x.mean).square() * x.var + (x.mean - c * y.mean).square() * y.var
        var = var + second * (x.var * y.var + 0.5 * c * c * (x.var * x.var + y.var * y.var))
        return restore(Moments(c.squeeze(dim), var.sum(dim)), like=like)

    return cosine_similarity


def _unit(x: Moments, dim: int, eps: float, second: float) -> Moments:
    """x/‖x‖, the norm frozen."""
    square = (x.mean * x.mean + second * x.var).sum(dim, keepdim=True)
    factor = square.clamp(min=eps * eps).rsqrt()
    return Moments(x.mean * factor, x.var * factor * factor)


VECTOR_NORMS = vector_norm_rules(1.0, largest_over, root=GAMMA, many=CLARK, name="vector norms")
