"""The arithmetic of IVON on flat vectors, in place."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from varprop.optim.settings import Settings

# On a CPU about this many entries of every vector involved should fit a cache: eight vectors of float32 are then 8 MB.
PIECE = 1 << 18
LARGEST = PIECE + PIECE // 2


def step_(
    mean: Tensor,
    momentum: Tensor,
    hess: Tensor,
    scale: Tensor,
    product: Tensor,
    step: int,
    settings: Settings,
    work: Tensor | None,
) -> None:
    """One update of h and m; ``momentum`` has taken ĝ in already, ``product`` is ĝ·z and is overwritten.

    ``work`` is of shape [2, LARGEST] or less for small vectors. It is for CPUs, where pieces should fit a cache and
    large allocations cost page faults; elsewhere None.

    ĥ = ĝ·ε·λ(h+δ) = ĝ·z·√λ/s   with s = 1/√(h+δ), the ``scale``
    h ← β₂h + (1−β₂)ĥ + ½(1−β₂)²(h−ĥ)²/(h+δ)
    m ← m − lr·(h₀+δ)·clip[(g/(1−β₁ᵗ) + δm)/(h+δ), ±r]
    """
    decay, slow = settings.weight_decay, 1 - settings.beta2
    debias = 1 - settings.beta1**step
    radius = settings.clip_radius * debias  # the division by debias is left to the last multiplication
    rate = settings.lr * (settings.hess_init + decay) / debias
    count = 1 if work is None else max(1, round(mean.numel() / PIECE))  # of equal size: a small one costs as many calls
    size = -(-mean.numel() // count)
    vectors = (mean, momentum, hess, scale, product)
    for m, g, h, s, x in zip(*(vector.split(size) for vector in vectors), strict=True):
        a, b = m.new_empty(2, m.numel()) if work is None else work[:, : m.numel()]
        torch.addcdiv(h, x, s, value=-math.sqrt(settings.ess), out=x)  # h − ĥ
        torch.mul(x, s, out=b)
        h.add_(x, alpha=-slow).addcmul_(b, b, value=0.5 * slow**2)
        torch.rsqrt(torch.add(h, decay, out=a), out=s)
        torch.add(g, m, alpha=decay * debias, out=b).div_(a)
        if math.isfinite(radius):
            b.clamp_(-radius, radius)
        m.add_(b, alpha=-rate)
