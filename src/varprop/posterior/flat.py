"""The tensors of a posterior side by side, so that a draw is one sum of products."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from varprop.moments import Moments

ALIGNED = 64  # entries: matrix products want their operands to begin at round addresses


class Flat:
    """Means and standard deviations of one dtype on one device, without gaps but for alignment."""

    def __init__(self, moments: Mapping[str, Moments]) -> None:
        self.shapes = {name: pair.mean.shape for name, pair in moments.items()}
        self.sizes = [size for pair in moments.values() for size in (pair.mean.numel(), -pair.mean.numel() % ALIGNED)]
        self.mean = self._joined([pair.mean for pair in moments.values()])
        self.std = self._joined([pair.var for pair in moments.values()]).sqrt_()

    def _joined(self, tensors: list[Tensor]) -> Tensor:
        joined = tensors[0].new_zeros(sum(self.sizes))
        torch._foreach_copy_(joined.split(self.sizes)[::2], [tensor.detach().reshape(-1) for tensor in tensors])
        return joined

    def draw(self, generator: torch.Generator | None, into: Tensor) -> None:
        """Means plus noise."""
        mean = self.mean
        device = mean.device if generator is None else generator.device
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=device).to(mean.device)
        torch.addcmul(mean, self.std, noise, out=into)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors in it, by name."""
        parts = flat.split(self.sizes)[::2]
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
