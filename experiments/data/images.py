"""Images with labels, and how they are divided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from experiments.data.examples import hold_out
from varprop.errors import DataError


@dataclass(frozen=True)
class Split:
    """Images [N, channels, h, w] as bytes, and class indices [N], in memory."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DataError(f"{len(self.images)} images and {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor | slice) -> Self:
        return type(self)(self.images[rows], self.labels[rows])

    def read(self, rows: Tensor | slice) -> Tensor:
        return self.images[rows]

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.images.to(device), self.labels.to(device))

    def inputs(self) -> Tensor:
        """What a network sees: floats from −1 to 1."""
        return self.images.float() / 127.5 - 1


@dataclass(frozen=True)
class Images:
    """A data set: what may be trained on, and the official test set."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]

    def hold_out(self, count: int, seed: int = 0) -> tuple[Split, Split]:
        """The training images without ``count`` random ones, and those: the same ones for the same seed."""
        return hold_out(self.train, count, seed)
