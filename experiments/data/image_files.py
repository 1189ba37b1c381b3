"""Encoded images, in files or packed, to bytes of pixels, many at a time."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import PIL.Image
import torch
from PIL.Image import Image, Resampling
from torch import Tensor

from experiments.data.examples import Column, Rows
from experiments.exceptions import DataError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")
SHORT, CROP = 256, 224
_CHUNK = 32
# What Pillow raises for damaged files, from its own checks and from the readers of single formats.
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, LookupError, struct.error, zlib.error, MemoryError)


def decode(
    sources: Sequence[str | bytes],
    size: tuple[int, int],
    resize: Callable[[Image], Image] = lambda image: image,
    pack: str = "",
) -> Tensor:
    """RGB bytes [N, 3, height, width] of files, or of images in a ``pack``, in as many threads as there are cores."""
    out = np.empty((len(sources), 3, *size), np.uint8)

    def fill(start: int) -> None:
        for row in range(start, min(start + _CHUNK, len(sources))):
            source = sources[row]
            out[row] = _pixels(source, size, resize, source if isinstance(source, str) else f"image {row} of {pack}")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(0, len(sources), _CHUNK)))
    return torch.from_numpy(out)


def _pixels(source: str | bytes, size: tuple[int, int], resize: Callable[[Image], Image], where: str) -> np.ndarray:
    try:
        with PIL.Image.open(source if isinstance(source, str) else io.BytesIO(source)) as image:
            found = resize(image.convert("RGB"))
    except PIL.UnidentifiedImageError:
        raise DataError(f"{where} is not an image that Pillow knows") from None
    except (*_DAMAGE, PIL.Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or error  # without the number of the error and the path once more
        raise DataError(f"{where} cannot be decoded: {reason}") from None
    if found.size != size[::-1]:
        raise DataError(f"{where} has {found.width}×{found.height} pixels instead of {size[1]}×{size[0]}")
    return np.asarray(found).transpose(2, 0, 1)


def centre_crops(sources: Sequence[str | bytes], pack: str = "") -> Tensor:
    """The short side to 256 (bilinear), then the middle 224 × 224: as is usual for ImageNet."""

    def crop(image: Image) -> Image:
        short = min(image.size)
        if short != SHORT:
            width, height = (int(SHORT * length / short) for length in image.size)
            image = image.resize((width, height), Resampling.BILINEAR)
        left, top = (round((length - CROP) / 2) for length in image.size)
        return image.crop((left, top, left + CROP, top + CROP))

    return decode(sources, (CROP, CROP), crop, pack)


@dataclass(frozen=True)
class ImageFiles:
    """A column of image files, which ``load`` makes a tensor of at every read."""

    paths: Sequence[str]
    load: Callable[[Sequence[str]], Tensor]
    device: torch.device | str = "cpu"

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Rows) -> Tensor:
        return self.load(self.take(rows).paths).to(self.device)

    def take(self, rows: Rows) -> Self:
        chosen = torch.arange(len(self))[rows if isinstance(rows, slice) else rows.cpu()]
        return replace(self, paths=[self.paths[row] for row in chosen.tolist()])

    def to(self, device: torch.device | str) -> Self:
        return replace(self, device=device)


def square_files(paths: Sequence[str], side: int) -> ImageFiles:
    """Resized to a square (bicubic): as BEiT-3 takes them."""

    def load(some: Sequence[str]) -> Tensor:
        return decode(some, (side, side), lambda image: image.resize((side, side), Resampling.BICUBIC))

    return ImageFiles(paths, load)


@dataclass(frozen=True)
class Padded:
    """Images as ViLT takes them: ``pixel_values`` as bytes, on a square canvas, and their own ``sizes`` [N, 2].

    The short side becomes ``short`` (bicubic) unless the long one then exceeds ``long``; both are cut to multiples of
    ``patch``. Padding to one size, not to the largest image of a batch, keeps shapes fixed and changes nothing.
    """

    short: int = 384
    long: int = 639  # 1333/800 of the short side, as ViLT's own processor has it
    patch: int = 32

    def __call__(self, paths: Sequence[str]) -> dict[str, Column]:
        return {"pixel_values": ImageFiles(paths, self._pixels), "sizes": ImageFiles(paths, self._sizes)}

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Of an image of that width and height, in the same order."""
        scale = min(self.short / min(width, height), self.long / max(width, height))
        w, h = (max(self.patch, int(scale * x + 0.5) // self.patch * self.patch) for x in (width, height))
        return w, h

    def _pixels(self, paths: Sequence[str]) -> Tensor:
        side = self.long // self.patch * self.patch

        def on_canvas(image: Image) -> Image:
            canvas = PIL.Image.new("RGB", (side, side))
            canvas.paste(image.resize(self.size(*image.size), Resampling.BICUBIC))
            return canvas

        return decode(paths, (side, side), on_canvas)

    def _sizes(self, paths: Sequence[str]) -> Tensor:
        sizes = []
        for path in paths:
            with PIL.Image.open(path) as image:  # reads the header alone
                sizes.append(self.size(*image.size)[::-1])
        return torch.tensor(sizes, dtype=torch.long).view(-1, 2)


class ImageFolder(NamedTuple):
    """Image files, their class indices [N], and the names of the classes."""

    paths: list[str]
    labels: Tensor
    classes: tuple[str, ...]


def image_folder(root: Path) -> ImageFolder:
    """All images below ``root``/<class>/, with classes and files in the order of their names."""
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    found = {name: _images(root / name) for name in classes}
    empty = [str(root / name) for name, paths in found.items() if not paths]
    if empty or not classes:
        raise DataError(f"{', '.join(empty) or root} holds no images; there should be a folder of them for each class")
    labels = torch.tensor([label for label, name in enumerate(classes) for _ in found[name]])
    return ImageFolder([path for paths in found.values() for path in paths], labels, tuple(classes))


def _images(folder: Path) -> list[str]:
    return sorted(
        os.path.join(place, file)  # noqa: PTH118 (a million Paths would take a gigabyte)
        for place, _, files in os.walk(folder, followlinks=True)
        for file in files
        if file.lower().endswith(EXTENSIONS) and not file.startswith(".")
    )
