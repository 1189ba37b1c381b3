"""Fashion-MNIST (and MNIST) in their own format, IDX."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from experiments.data.images import Images, ImageSet
from experiments.data.labelled import check_labels
from experiments.data.places import find
from experiments.faults import DataError

FILES = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
GARMENTS = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def fashion_mnist(folder: Path | None = None) -> ImageSet:
    """60,000 and 10,000 images of 28×28."""
    remedy = "get the four files *-ubyte.gz (Debian: the package dataset-fashion-mnist)"
    place, _ = find("fashion-mnist", folder, [FILES], remedy)
    train, test = (_split(place / images, place / labels) for images, labels in (FILES[:2], FILES[2:]))
    return ImageSet(train, test, GARMENTS)


def mnist(folder: Path | None = None) -> ImageSet:
    """60,000 and 10,000 handwritten digits of 28×28."""
    place, _ = find("mnist", folder, [FILES], "get the four files *-ubyte.gz of MNIST")
    train, test = (_split(place / images, place / labels, "MNIST") for images, labels in (FILES[:2], FILES[2:]))
    return ImageSet(train, test, tuple("0123456789"))


def _split(image_file: Path, label_file: Path, what: str = "Fashion-MNIST") -> Images:
    images, labels = read_idx(image_file), read_idx(label_file)
    if images.ndim != 3:
        raise DataError(f"{image_file} holds {images.ndim}-dimensional values, not images")
    if labels.shape != images.shape[:1]:
        raise DataError(f"{label_file} holds {list(labels.shape)} labels for the {len(images)} images beside it")
    check_labels(labels, len(GARMENTS), str(label_file), what)
    return Images(images.unsqueeze(1), labels.long())


def read_idx(path: Path) -> Tensor:
    """The bytes of one file: 0, 0, 8 (unsigned bytes), the number of dimensions, the sizes, the values."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file: {error}; download it again") from None
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is not an IDX file of bytes")
    start = 4 + 4 * data[3]
    if len(data) <= start:
        raise DataError(f"{path} ends where its values should begin")
    sizes = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) - start != math.prod(sizes):
        raise DataError(f"{path} should hold {math.prod(sizes)} values and holds {len(data) - start}")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=start).view(sizes)
