"""Images with labels, in memory or in files."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor

from experiments.data.decode import CROP, centre_crop, decode
from experiments.faults import DataError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Images:
    """Images [N, channels, h, w] as bytes, and class indices [N], in memory."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor | slice) -> Self:
        return type(self)(self.images[rows], self.labels[rows])

    def read(self, rows: Tensor | slice) -> Tensor:
        return self.images[rows]

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.images.to(device), self.labels.to(device))


class ImageSet(NamedTuple):
    """A data set: what may be trained on, the official test set, and the names of the classes."""

    train: Images
    test: Images
    classes: tuple[str, ...]


@dataclass(frozen=True)
class ImageFiles:
    """Image files with their class indices [N]; decoded, resized and cropped on every read."""

    paths: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor | slice) -> Self:
        return replace(self, paths=self._paths(rows), labels=self.labels[rows])

    def read(self, rows: Tensor | slice) -> Tensor:
        """The middle of each image, as bytes."""
        return decode(self._paths(rows), (CROP, CROP), centre_crop).to(self.labels.device)

    def to(self, device: torch.device | str) -> Self:
        return replace(self, labels=self.labels.to(device))

    def _paths(self, rows: Tensor | slice) -> tuple[str, ...]:
        chosen = torch.arange(len(self))[rows if isinstance(rows, slice) else rows.cpu()]
        return tuple(self.paths[row] for row in chosen.tolist())


def image_folder(root: Path) -> ImageFiles:
    """All images below ``root``/<class>/, with classes and files in the order of their names."""
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    found = {name: _images(root / name) for name in classes}
    empty = [str(root / name) for name, paths in found.items() if not paths]
    if empty or not classes:
        raise DataError(f"{', '.join(empty) or root} holds no images; there should be a folder of them for each class")
    paths = tuple(path for name in classes for path in found[name])
    labels = torch.tensor([label for label, name in enumerate(classes) for _ in found[name]])
    return ImageFiles(paths, labels, tuple(classes))


def _images(folder: Path) -> list[str]:
    return sorted(
        os.path.join(place, file)  # noqa: PTH118 (a million Paths would take a gigabyte)
        for place, _, files in os.walk(folder, followlinks=True)
        for file in files
        if file.lower().endswith(EXTENSIONS) and not file.startswith(".")
    )
