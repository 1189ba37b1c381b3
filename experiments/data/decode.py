"""Encoded images to bytes of pixels, many at a time."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import PIL.Image
import torch
from PIL.Image import Image, Resampling
from torch import Tensor

from experiments.faults import DataError

SHORT, CROP = 256, 224
_CHUNK = 32
# What Pillow raises for damaged files, from its own checks and from the readers of single formats.
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, LookupError, struct.error, zlib.error, MemoryError)


def as_it_is(image: Image) -> Image:
    return image


def centre_crop(image: Image) -> Image:
    """The short side to 256 (bilinear), then the middle 224 × 224: as is usual for ImageNet."""
    short = min(image.size)
    if short != SHORT:
        width, height = (int(SHORT * length / short) for length in image.size)
        image = image.resize((width, height), Resampling.BILINEAR)
    left, top = (round((length - CROP) / 2) for length in image.size)
    return image.crop((left, top, left + CROP, top + CROP))


def decode(
    sources: Sequence[str | bytes],
    size: tuple[int, int],
    prepare: Callable[[Image], Image] = as_it_is,
    pack: str = "",
) -> Tensor:
    """RGB bytes [N, 3, height, width] of files, or of images in a ``pack``, in as many threads as there are cores."""
    out = np.empty((len(sources), 3, *size), np.uint8)

    def fill(start: int) -> None:
        for row in range(start, min(start + _CHUNK, len(sources))):
            source = sources[row]
            out[row] = _pixels(source, size, prepare, source if isinstance(source, str) else f"image {row} of {pack}")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(0, len(sources), _CHUNK)))
    return torch.from_numpy(out)


def _pixels(source: str | bytes, size: tuple[int, int], prepare: Callable[[Image], Image], where: str) -> np.ndarray:
    try:
        with PIL.Image.open(source if isinstance(source, str) else io.BytesIO(source)) as image:
            found = prepare(image.convert("RGB"))
    except PIL.UnidentifiedImageError:
        raise DataError(f"{where} is not an image that Pillow knows") from None
    except (*_DAMAGE, PIL.Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or error  # without the number of the error and the path once more
        raise DataError(f"{where} cannot be decoded: {reason}") from None
    if found.size != size[::-1]:
        raise DataError(f"{where} has {found.width}×{found.height} pixels instead of {size[1]}×{size[0]}")
    return np.asarray(found).transpose(2, 0, 1)
