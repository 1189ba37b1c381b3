"""Draws of named Gaussian tensors, which lie side by side for it, so that a draw is one sum of products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from varprop.moments import Moments

ALIGNED = 64  # entries: matrix products want their operands to begin at round addresses


def draws(
    moments: Mapping[str, Moments], generator: torch.Generator | None, in_place: bool
) -> Iterator[dict[str, Tensor]]:
    """Draws without end; those that are ``in_place`` are the same tensors with new numbers."""
    kinds: dict[str, dict[str, Moments]] = {}
    for name, pair in sorted(moments.items()):
        kinds.setdefault(f"{pair.mean.dtype} {pair.mean.device}", {})[name] = pair
    flats = [_Flat(kinds[kind]) for kind in sorted(kinds)]
    while True:
        drawn = {name: tensor for flat in flats for name, tensor in flat.draw(generator, in_place).items()}
        yield {name: drawn[name] for name in moments}


class _Flat:
    """Means and standard deviations of one dtype on one device, without gaps but for alignment."""

    def __init__(self, moments: Mapping[str, Moments]) -> None:
        self.means = {name: pair.mean for name, pair in moments.items()}
        self.sizes = [size for pair in moments.values() for size in (pair.mean.numel(), -pair.mean.numel() % ALIGNED)]
        self.mean = self._joined([*self.means.values()])
        self.std = self._joined([pair.var for pair in moments.values()]).sqrt_()
        self.drawn, self.views, self.copies = self.mean, dict[str, Tensor](), dict[str, Tensor]()

    def _joined(self, tensors: list[Tensor]) -> Tensor:
        joined = tensors[0].new_zeros(sum(self.sizes))
        torch._foreach_copy_(joined.split(self.sizes)[::2], [tensor.detach().reshape(-1) for tensor in tensors])
        return joined

    def draw(self, generator: torch.Generator | None, in_place: bool) -> dict[str, Tensor]:
        """Means plus noise, by name; those with an order of dimensions of their own in memory are copied into it."""
        mean = self.mean
        if not (in_place and self.views):
            self.drawn = torch.empty_like(mean)
            parts = self.drawn.split(self.sizes)[::2]
            self.views = {name: part.view(x.shape) for (name, x), part in zip(self.means.items(), parts, strict=True)}
            self.copies = {name: torch.empty_like(x) for name, x in self.means.items() if not x.is_contiguous()}
        device = mean.device if generator is None else generator.device
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=device).to(mean.device)
        torch.addcmul(mean, self.std, noise, out=self.drawn)
        for name, copy in self.copies.items():
            copy.copy_(self.views[name])
        return self.views | self.copies
