"""The arithmetic of IVON on flat vectors, in place."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from varprop.optim.settings import Settings

# On a CPU a piece of every vector involved should fit the last-level cache: 2¹⁸ float32 entries of six are 6 MB.
_PIECE = 1 << 18


class Scratch:
    """Two work vectors. Kept on a CPU, where large allocations cost page faults; elsewhere torch caches them."""

    def __init__(self, like: Tensor) -> None:
        self._kept = like.new_empty(2, min(like.numel(), _PIECE)) if like.device.type == "cpu" else None

    def pieces(self, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """The vectors piece by piece, each time followed by two work vectors of that length."""
        length = vectors[0].numel()
        if self._kept is None:
            yield (*vectors, *torch.empty_like(vectors[0].expand(2, length)))
            return
        for start in range(0, length, _PIECE):
            part = tuple(vector[start : start + _PIECE] for vector in vectors)
            yield (*part, *self._kept[:, : part[0].numel()])


def scale_noise_(noise: Tensor, hess: Tensor, weight_decay: float, scratch: Scratch) -> None:
    """ε = z/√(λ(h + δ)), where the noise comes in as z/√λ."""
    for e, h, a, _ in scratch.pieces(noise, hess):
        e.mul_(torch.add(h, weight_decay, out=a).rsqrt_())


def step_(
    mean: Tensor, momentum: Tensor, hess: Tensor, product: Tensor, step: int, settings: Settings, scratch: Scratch
) -> None:
    """One update of h and m. ``product`` is ĝ·ε and is overwritten; ``momentum`` has taken ĝ in already.

    ĥ = ĝ·ε·λ(h+δ)
    h ← β₂h + (1−β₂)ĥ + ½(1−β₂)²(h−ĥ)²/(h+δ)
    m ← m − lr·(h₀+δ)·clip[(g/(1−β₁ᵗ) + δm)/(h+δ), ±r]
    """
    decay, slow = settings.weight_decay, 1 - settings.beta2
    debias = 1 - settings.beta1**step
    radius = settings.clip_radius * debias  # the division by debias is left to the last multiplication
    rate = settings.lr * (settings.hess_init + decay) / debias
    for m, g, h, x, a, b in scratch.pieces(mean, momentum, hess, product):
        torch.add(h, decay, out=a)
        torch.addcmul(h, a, x, value=-settings.ess, out=x)  # h − ĥ
        torch.mul(x, x, out=b)
        h.add_(x, alpha=-slow).addcdiv_(b, a, value=0.5 * slow**2)
        torch.add(h, decay, out=a)
        torch.add(g, m, alpha=decay * debias, out=b).div_(a)
        if math.isfinite(radius):
            b.clamp_(-radius, radius)
        m.add_(b, alpha=-rate)
