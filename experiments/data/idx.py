"""Fashion-MNIST (and MNIST) in their own format, IDX."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from experiments.data.examples import Examples, ImageSet, check_labels
from experiments.data.text_files import find, read_bytes
from experiments.exceptions import DataError

FILES = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
GARMENTS = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def fashion_mnist(folder: Path | None = None) -> ImageSet:
    """60,000 and 10,000 images of 28×28."""
    remedy = "get the four files *-ubyte.gz (Debian: the package dataset-fashion-mnist)"
    return _image_set("Fashion-MNIST", folder, remedy, GARMENTS)


def mnist(folder: Path | None = None) -> ImageSet:
    """60,000 and 10,000 handwritten digits of 28×28."""
    return _image_set("MNIST", folder, "get the four files *-ubyte.gz of MNIST", tuple("0123456789"))


def _image_set(name: str, folder: Path | None, remedy: str, classes: tuple[str, ...]) -> ImageSet:
    place, _ = find(name.lower(), folder, [FILES], remedy)
    train, test = (_split(place / images, place / labels, name) for images, labels in (FILES[:2], FILES[2:]))
    return ImageSet(train, test, classes)


def _split(image_file: Path, label_file: Path, what: str) -> Examples:
    images, labels = read_idx(image_file), read_idx(label_file)
    if images.ndim != 3:
        raise DataError(f"{image_file} holds {images.ndim}-dimensional values, not images")
    if labels.shape != images.shape[:1]:
        raise DataError(f"{label_file} holds {list(labels.shape)} labels for the {len(images)} images beside it")
    check_labels(labels, len(GARMENTS), str(label_file), what)
    return Examples(images.unsqueeze(1), labels.long())


def read_idx(path: Path) -> Tensor:
    """The bytes of one file: 0, 0, 8 (unsigned bytes), the number of dimensions, the sizes, the values."""
    data = read_bytes(path)
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is not an IDX file of bytes")
    start = 4 + 4 * data[3]
    if len(data) <= start:
        raise DataError(f"{path} ends where its values should begin")
    sizes = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) - start != math.prod(sizes):
        raise DataError(f"{path} should hold {math.prod(sizes)} values and holds {len(data) - start}")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=start).view(sizes)
