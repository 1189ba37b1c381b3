"""Folders of images, one for each class, read when they are needed."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from experiments.data.decode import centre_crop, decode
from experiments.data.examples import numbers
from varprop.errors import DataError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Files:
    """Image files with their class indices [N]; decoded, resized and cropped on every read."""

    paths: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]
    side: int = 224
    resize: int = 256

    def __post_init__(self) -> None:
        centre_crop(self.side, self.resize)  # refuses a crop that does not fit, before anything is read
        if len(self.paths) != len(self.labels):
            raise DataError(f"{len(self.paths)} image files and {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor | slice) -> Self:
        paths = tuple(self.paths[row] for row in numbers(rows, len(self)))
        return replace(self, paths=paths, labels=self.labels[rows])

    def read(self, rows: Tensor | slice) -> Tensor:
        """The middle ``side`` × ``side`` of each image once its short side is ``resize``, as bytes."""
        paths = [self.paths[row] for row in numbers(rows, len(self))]
        images = decode(paths, (self.side, self.side), centre_crop(self.side, self.resize))
        return images.to(self.labels.device)

    def to(self, device: torch.device | str) -> Self:
        return replace(self, labels=self.labels.to(device))


def image_folder(folder: str | os.PathLike[str], side: int = 224, resize: int = 256) -> Files:
    """All images below ``folder``/<class>/, with classes and files in the order of their names."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; give one that holds a folder of images for each class")
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise DataError(f"{root} holds no folders; it should hold a folder of images for each class")
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = _images(root / name)
        if not found:
            raise DataError(f"{root / name} holds no images ({', '.join(EXTENSIONS)}); add some or remove that folder")
        paths += found
        labels += [label] * len(found)
    return Files(tuple(paths), torch.tensor(labels), tuple(classes), side, resize)


def _images(folder: Path) -> list[str]:
    return sorted(
        os.path.join(place, file)  # noqa: PTH118 (a million Paths would take a gigabyte)
        for place, _, files in os.walk(folder, followlinks=True)
        for file in files
        if file.lower().endswith(EXTENSIONS) and not file.startswith(".")
    )
