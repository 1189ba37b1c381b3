"""The arithmetic of IVON on flat vectors, in place."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from varprop.optim.settings import Settings

# On a CPU about this many entries of every vector involved should fit a cache: eight vectors of float32 are then 8 MB.
PIECE = 1 << 18
LARGEST = PIECE + PIECE // 2


class Scratch:
    """Two work vectors. Kept on a CPU, where large allocations cost page faults; elsewhere torch caches them."""

    def __init__(self, like: Tensor) -> None:
        self._kept = like.new_empty(2, min(like.numel(), LARGEST)) if like.device.type == "cpu" else None

    def pieces(self, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """The vectors piece by piece, each time followed by two work vectors of that length."""
        length = vectors[0].numel()
        if self._kept is None:
            yield (*vectors, *vectors[0].new_empty(2, length))
            return
        count = max(1, round(length / PIECE))  # of equal pieces: one that is much smaller costs as many calls
        size = -(-length // count)
        for start in range(0, length, size):
            part = tuple(vector[start : start + size] for vector in vectors)
            yield (*part, *self._kept[:, : part[0].numel()])


def step_(
    mean: Tensor,
    momentum: Tensor,
    hess: Tensor,
    scale: Tensor,
    product: Tensor,
    step: int,
    settings: Settings,
    scratch: Scratch,
) -> None:
    """One update of h and m; ``momentum`` has taken ĝ in already, ``product`` is ĝ·z and is overwritten.

    ĥ = ĝ·ε·λ(h+δ) = ĝ·z·√λ/s   with s = 1/√(h+δ), the ``scale``
    h ← β₂h + (1−β₂)ĥ + ½(1−β₂)²(h−ĥ)²/(h+δ)
    m ← m − lr·(h₀+δ)·clip[(g/(1−β₁ᵗ) + δm)/(h+δ), ±r]
    """
    decay, slow = settings.weight_decay, 1 - settings.beta2
    debias = 1 - settings.beta1**step
    radius = settings.clip_radius * debias  # the division by debias is left to the last multiplication
    rate = settings.lr * (settings.hess_init + decay) / debias
    for m, g, h, s, x, a, b in scratch.pieces(mean, momentum, hess, scale, product):
        torch.addcdiv(h, x, s, value=-math.sqrt(settings.ess), out=x)  # h − ĥ
        torch.mul(x, s, out=b)
        h.add_(x, alpha=-slow).addcmul_(b, b, value=0.5 * slow**2)
        torch.rsqrt(torch.add(h, decay, out=a), out=s)
        torch.add(g, m, alpha=decay * debias, out=b).div_(a)
        if math.isfinite(radius):
            b.clamp_(-radius, radius)
        m.add_(b, alpha=-rate)
