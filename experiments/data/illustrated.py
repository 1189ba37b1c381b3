"""Texts with images: tokens in memory, image files decoded on every read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import PIL.Image
import torch
from PIL.Image import Image, Resampling
from torch import Tensor

from experiments.data.decode import decode
from experiments.data.labelled import Labels, take_labels

Files = Sequence[tuple[str, ...]]
"""The images of each example."""


class View(Protocol):
    """How the images of some examples become a model's arguments, or what ``prepare`` makes them from."""

    def __call__(self, files: Files) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Illustrated:
    """Tokens [N, length] by name, image files, and labels [N] or scores of answers."""

    tokens: Mapping[str, Tensor]
    files: Files
    view: View
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor | slice) -> Self:
        tokens = {name: tensor[rows] for name, tensor in self.tokens.items()}
        return replace(self, tokens=tokens, files=self._files(rows), labels=take_labels(self.labels, rows))

    def read(self, rows: Tensor | slice) -> dict[str, Tensor]:
        found = {name: tensor[rows] for name, tensor in self.tokens.items()}
        device = next(iter(found.values())).device
        return found | {name: tensor.to(device) for name, tensor in self.view(self._files(rows)).items()}

    def to(self, device: torch.device | str) -> Self:
        tokens = {name: tensor.to(device) for name, tensor in self.tokens.items()}
        return replace(self, tokens=tokens, labels=self.labels.to(device))

    def _files(self, rows: Tensor | slice) -> Files:
        chosen = torch.arange(len(self))[rows if isinstance(rows, slice) else rows.cpu()]
        return [self.files[row] for row in chosen.tolist()]


@dataclass(frozen=True)
class Squares:
    """Each image of an example under a name of its own, as bytes, resized to a square (bicubic): BEiT-3's."""

    names: tuple[str, ...]
    side: int

    def __call__(self, files: Files) -> dict[str, Tensor]:
        columns = zip(*files, strict=True) if files else [()] * len(self.names)
        return {
            name: decode(column, (self.side, self.side), self._resized)
            for name, column in zip(self.names, columns, strict=True)
        }

    def _resized(self, image: Image) -> Image:
        return image.resize((self.side, self.side), Resampling.BICUBIC)


@dataclass(frozen=True)
class Padded:
    """The image as ViLT takes it: ``pixel_values`` as bytes, on a square canvas, and its own ``sizes`` [N, 2].

    The short side becomes ``short`` (bicubic) unless the long one then exceeds ``long``; both are cut to multiples of
    ``patch``. Padding to one size, not to the largest image of a batch, keeps shapes fixed and changes nothing.
    """

    short: int = 384
    long: int = 639  # 1333/800 of the short side, as ViLT's own processor has it
    patch: int = 32

    @property
    def canvas(self) -> tuple[int, int]:
        side = self.long // self.patch * self.patch
        return side, side

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Of an image of that width and height, in the same order."""
        scale = min(self.short / min(width, height), self.long / max(width, height))
        w, h = (max(self.patch, int(scale * x + 0.5) // self.patch * self.patch) for x in (width, height))
        return w, h

    def __call__(self, files: Files) -> dict[str, Tensor]:
        paths = [path for (path,) in files]
        values = decode(paths, self.canvas, self._on_canvas)
        sizes = []
        for path in paths:
            with PIL.Image.open(path) as image:  # reads the header alone
                sizes.append(self.size(*image.size)[::-1])
        return {"pixel_values": values, "sizes": torch.tensor(sizes, dtype=torch.long).view(-1, 2)}

    def _on_canvas(self, image: Image) -> Image:
        canvas = PIL.Image.new("RGB", self.canvas)
        canvas.paste(image.resize(self.size(*image.size), Resampling.BICUBIC))
        return canvas
