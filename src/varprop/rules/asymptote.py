"""Moments of smooth activations under a wide Gaussian, which sees them as their asymptote plus a remainder.

f(x) = 1[x > 0] − sign(x) r(|x|)   (sigmoid)        f(x) = x⁺ + r(|x|)   (SiLU, softplus, GELU)

The asymptote has closed moments. Against r, which decays fast, the Gaussian is a smooth function, so a few fixed nodes
on the half-line do, and the values of r there are constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from varprop.moments import Moments
from varprop.rules.normal import distance, rectified, tail


class Node(NamedTuple):
    """A point t > 0 with w r(t) and w r(t)², w its quadrature weight."""

    at: float
    first: float
    second: float


def nodes(remainder: Callable[[float], float], rule: Sequence[tuple[float, float]]) -> list[Node]:
    return [Node(t, weight * remainder(t), weight * remainder(t) ** 2) for t, weight in rule]


def step_and_remainder(x: Moments, remainder: Sequence[Node]) -> Moments:
    """1[x > 0] − sign(x) r(|x|). Var = Φ(a)Φ(−a) − 2[Φ(a) R₋ + Φ(−a) R₊] + E[r²] − (R₋ − R₊)², R± = E[r; ±x > 0]."""
    outside, _ = tail(distance(x.mean) * x.var.rsqrt())
    above, below = torch.where(x.mean > 0, 1 - outside, outside), torch.where(x.mean > 0, outside, 1 - outside)
    right, left, square, _ = _expectations(x, remainder)
    shift = left - right
    spread = outside * (1 - outside) - 2 * (above * left + below * right) + square - shift.square()
    return Moments(above + shift, spread)


def ramp_and_remainder(x: Moments, remainder: Sequence[Node]) -> Moments:
    """x⁺ + r(|x|). Var = Var[x⁺] + 2 Cov[x⁺, r] + Var[r]."""
    ramp = rectified(x)
    right, left, square, product = _expectations(x, remainder)
    shift = left + right
    return Moments(ramp.mean + shift, ramp.var + 2 * (product - ramp.mean * shift) + square - shift.square())


def _expectations(x: Moments, remainder: Sequence[Node]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E[r; x > 0], E[r; x < 0], E[r²] and E[x⁺ r]."""
    precision = -0.5 / x.var
    norm = torch.rsqrt(2 * math.pi * x.var)
    right = left = square = product = torch.zeros_like(x.mean)
    for at, first, second in remainder:
        here = torch.exp((x.mean - at).square() * precision)
        mirrored = torch.exp((x.mean + at).square() * precision)
        right = right + first * here
        left = left + first * mirrored
        square = square + second * (here + mirrored)
        product = product + first * at * here
    return norm * right, norm * left, norm * square, norm * product


def by_width(
    x: Moments, limit: float, narrow: Callable[[Moments], Moments], wide: Callable[[Moments], Moments]
) -> Moments:
    """One formula below a variance of ``limit``, another from there on; neither sees a variance it is not made for."""
    inner, outer = narrow(Moments(x.mean, x.var.clamp(max=limit))), wide(Moments(x.mean, x.var.clamp(min=limit)))
    is_narrow = x.var < limit
    return Moments(
        torch.where(is_narrow, inner.mean, outer.mean), torch.where(is_narrow, inner.var, outer.var).clamp(min=0)
    )
