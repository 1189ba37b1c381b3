"""Moments of any smooth elementwise function of one Gaussian tensor."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from varprop.moments import Moments
from varprop.rules.normal import floored, promote, restore

# 128 nodes on |z| ≤ 8.5 resolve, at v = 100, features of f as narrow as tanh's; the Gaussian's tail beyond is 1e-17.
NODES = [8.5 * (2 * k / 127 - 1) for k in range(128)]
TOTAL = math.fsum(math.exp(-0.5 * z * z) for z in NODES)
WEIGHTS = [math.exp(-0.5 * z * z) / TOTAL for z in NODES]
CHUNK = 32  # nodes held in memory at a time


def integrate(
    function: Callable[[Tensor], Tensor], x: Moments, difference: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Moments:
    """Moments of f(x), f elementwise; it is given points of shape [K, *x.shape] and keeps that shape.

    E[f] = f(μ) + Σ wₖ dₖ        Var[f] = Σ wₖ (dₖ − Σ wⱼ dⱼ)²        dₖ = f(μ + √v zₖ) − f(μ)
    Trapezoidal rule in z. It converges geometrically for smooth f at any v, where Gauss–Hermite steps over f's features
    from v ≈ 4 on: variance within 1e-5 (relative) for v ≤ 4, and 3e-3 at v = 100 for tanh, whose poles are the nearest.
    A kink costs about 1e-3 √v. ``difference(μ, δ)`` gives f(μ + δ) − f(μ) without loss; as a difference of values, in
    float32, its variance is lost from √v ≈ 1e-4 μ down, while the mean is not.
    """
    mean, var = promote(x, torch.float32)
    raised = floored(var)
    std = raised.sqrt()
    centre = function(mean[None])[0]
    shift, square = torch.zeros_like(mean), torch.zeros_like(mean)
    for start in range(0, len(NODES), CHUNK):
        chunk = slice(start, start + CHUNK)
        z, weight = mean.new_tensor((NODES[chunk], WEIGHTS[chunk])).reshape(2, -1, *[1] * mean.ndim)
        found = function(mean + std * z) - centre if difference is None else difference(mean, std * z)
        shift = shift + (weight * found).sum(0)
        square = square + (weight * found.square()).sum(0)
    spread, share = (square - shift.square()).clamp(min=0), var / raised  # nothing of the floor where v = 0
    return restore(Moments(centre + share * shift, share * spread), like=x)
