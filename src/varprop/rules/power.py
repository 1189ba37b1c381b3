"""Powers and roots."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments
from varprop.rules.derivative import DELTA, tangent
from varprop.rules.normal import at_least, expm1
from varprop.rules.quadrature import integrate
from varprop.rules.ruleset import RuleSet, rule

aten = torch.ops.aten


def _is_natural(exponent: float) -> bool:
    return exponent >= 0 and exponent == int(exponent)


def _neglected_by_power(_: Any, exponent: float) -> str | None:
    if _is_natural(exponent):
        return None
    return NEGATIVE if exponent > 0 else f"{DELTA}: the moments of such a power do not exist"


NEGATIVE = "negative values count as 0"


@rule(aten.pow.Tensor_Scalar, approximation=_neglected_by_power, scaled=True)
@at_least(torch.float32)
def power(x: Moments, exponent: float) -> Moments:
    """xⁿ. For n = 0, 1, 2, …: var = Σ (vᵏ/k!) (E f⁽ᵏ⁾)², k ≥ 1, a sum of squares.

    Other positive powers by quadrature, as of max(x, 0); negative ones are linearised.
    """
    if not _is_natural(exponent) and exponent > 0:
        return _positive(x, exponent)
    if not _is_natural(exponent):
        return tangent(aten.pow.Tensor_Scalar, scaled=True)(x, exponent)
    n = int(exponent)
    var = torch.zeros_like(x.mean)
    for k in range(1, n + 1):
        var = var + math.perm(n, k) ** 2 / math.factorial(k) * x.var**k * _raw_moment(x, n - k).square()
    return Moments(_raw_moment(x, n), var)


def _positive(x: Moments, exponent: float) -> Moments:
    """Moments of max(x, 0)ᵖ. At 2⁻⁴ of a positive x and nearer its powers differ by x^p ((1 + δ/x)ᵖ − 1)."""

    def difference(mean: Tensor, step: Tensor) -> Tensor:
        positive = mean > 0
        base = torch.where(positive, mean, 1.0)
        share = torch.where(positive, step / base, 1.0)
        near = share.abs() < 2**-4
        small = torch.where(near, share, 0.0)
        grown = base**exponent * expm1(exponent * torch.log1p(small))
        direct = _positive_power(mean + step, exponent) - _positive_power(mean, exponent)
        return torch.where(near, grown, direct)

    return integrate(lambda points: _positive_power(points, exponent), x, difference)


def _positive_power(x: Tensor, exponent: float) -> Tensor:
    """max(x, 0)ᵖ with a finite derivative at 0."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0) ** exponent, 0.0)


@rule(aten.sqrt.default, approximation=NEGATIVE)
def root(x: Moments) -> Moments:
    """√x, by quadrature."""
    return _positive(x, 0.5)


def _raw_moment(x: Moments, n: int) -> Tensor:
    """E[xⁿ]; the j-th term counts the ways to pair off 2j of the n factors."""
    total = torch.zeros_like(x.mean)
    for j in range(n // 2 + 1):
        pairings = math.comb(n, 2 * j) * math.factorial(2 * j) // (2**j * math.factorial(j))
        total = total + pairings * x.mean ** (n - 2 * j) * x.var**j
    return total


@rule(aten.square.default, approximation=None, scaled=True)
@at_least(torch.float32)
def square(x: Moments) -> Moments:
    """x². mean = μ² + v, var = 2v (2μ² + v)."""
    return Moments(x.mean.square() + x.var, 2 * x.var * (2 * x.mean.square() + x.var))


POWER = RuleSet(power, square, root)
