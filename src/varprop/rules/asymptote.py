"""Moments of smooth activations under a wide Gaussian, which sees them as their asymptote plus a small remainder.

f(x) = 1[x > 0] − sign(x) r(|x|)   (sigmoid)    or    f(x) = x⁺ + r(|x|)   (SiLU, softplus, GELU),
where r decays fast. The asymptote has closed moments; against r the Gaussian is a smooth function, so a few fixed nodes
on the half-line do, and the values of r there are constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from varprop.moments import Moments
from varprop.rules.gaussian import rectified, tails


class Node(NamedTuple):
    """A point t > 0 with w·r(t) and w·r(t)², w its quadrature weight."""

    at: float
    first: float
    second: float


def laguerre_nodes(remainder: Callable[[float], float], count: int, scale: float) -> list[Node]:
    """Gauss–Laguerre: for r that decays like an exponential."""
    points, weights = np.polynomial.laguerre.laggauss(count)
    return [_node(remainder, scale * t, scale * w * math.exp(t)) for t, w in zip(points, weights, strict=True)]


def legendre_nodes(remainder: Callable[[float], float], count: int, reach: float) -> list[Node]:
    """Gauss–Legendre on [0, reach]: for r that decays faster."""
    points, weights = np.polynomial.legendre.leggauss(count)
    return [_node(remainder, reach / 2 * (1 + t), reach / 2 * w) for t, w in zip(points, weights, strict=True)]


def _node(remainder: Callable[[float], float], at: float, weight: float) -> Node:
    r = remainder(float(at))
    return Node(float(at), float(weight) * r, float(weight) * r * r)


def step_and_remainder(x: Moments, nodes: list[Node]) -> Moments:
    """1[x > 0] − sign(x) r(|x|). Var = Φ(a)Φ(−a) − 2[Φ(a) R₋ + Φ(−a) R₊] + E[r²] − E[r]², R± = E[r; ±x > 0]."""
    above, below, _ = tails(x.mean * x.var.rsqrt())
    right, left, square, _ = _remainder(x, nodes)
    shift = left - right
    return Moments(above + shift, above * below - 2 * (above * left + below * right) + square - shift * shift)


def ramp_and_remainder(x: Moments, nodes: list[Node]) -> Moments:
    """x⁺ + r(|x|). Var = Var[x⁺] + 2 Cov[x⁺, r] + Var[r]."""
    ramp, above, product = rectified(x.mean, x.var)
    right, left, square, slope = _remainder(x, nodes)
    shift = left + right
    return Moments(ramp + shift, x.var * (above - product) + 2 * (slope - ramp * shift) + square - shift * shift)


def _remainder(x: Moments, nodes: list[Node]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E[r; x > 0], E[r; x < 0], E[r²] and E[x⁺ r]."""
    precision = -0.5 / x.var
    right = left = square = slope = torch.zeros_like(x.mean)
    for at, first, second in nodes:
        density = torch.exp((x.mean - at).square() * precision)
        mirrored = torch.exp((x.mean + at).square() * precision)
        right = right + first * density
        left = left + first * mirrored
        square = square + second * (density + mirrored)
        slope = slope + first * at * density
    norm = torch.rsqrt(2 * math.pi * x.var)
    return right * norm, left * norm, square * norm, slope * norm


def by_width(
    x: Moments, limit: float, narrow: Callable[[Moments], Moments], wide: Callable[[Moments], Moments]
) -> Moments:
    """One rule below a variance of ``limit``, another from there on; neither sees a variance it is not made for."""
    inner, outer = narrow(Moments(x.mean, x.var.clamp(max=limit))), wide(Moments(x.mean, x.var.clamp(min=limit)))
    is_narrow = x.var < limit
    return Moments(*(torch.where(is_narrow, a, b) for a, b in zip(inner, outer, strict=True)))
