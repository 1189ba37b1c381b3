"""CIFAR-10 and CIFAR-100: the official binary versions; CIFAR-10 also as lossless sheets of images in npz files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from experiments.data.examples import Examples, ImageSet, check_labels
from experiments.data.image_files import decode
from experiments.data.packs import read_pack
from experiments.data.text_files import find
from experiments.exceptions import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PARTS = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
PACKS = (*(f"train_{i}.npz" for i in range(1, 6)), "test.npz")
PARTS_100 = ("train.bin", "test.bin")
NAMES_100 = "fine_label_names.txt"
REMEDY = "get and unpack the binary version from cs.toronto.edu/~kriz/cifar.html (the pickled one is not read)"
_SIDE, _ROWS, _COLUMNS = 32, 20, 10


def cifar10(folder: Path | None = None) -> ImageSet:
    """50,000 and 10,000 images of 32×32, in the official order."""
    place, files = find("cifar10", folder, [PARTS, PACKS], REMEDY, also=["cifar-10-batches-bin"])
    if files == PACKS:
        parts = [_sheets(place / pack) for pack in PACKS]
    else:
        parts = [_records(place / part, "CIFAR-10", 10) for part in PARTS]
    images, labels = (torch.cat(column) for column in zip(*parts[:-1], strict=True))
    return ImageSet(Examples(images, labels), Examples(*parts[-1]), CLASSES)


def cifar100(folder: Path | None = None) -> ImageSet:
    """50,000 and 10,000 images of 32×32 with their fine labels, in the official order."""
    place, _ = find("cifar100", folder, [(*PARTS_100, NAMES_100)], REMEDY, also=["cifar-100-binary"])
    train, test = (Examples(*_records(place / part, "CIFAR-100", 20, 100)) for part in PARTS_100)
    names = tuple((place / NAMES_100).read_text().split())
    if len(names) != 100:
        raise DataError(f"{place / NAMES_100} has {len(names)} names instead of 100")
    return ImageSet(train, test, names)


def _records(path: Path, title: str, *classes: int) -> tuple[Tensor, Tensor]:
    """A byte for each kind of label, coarse ones first, and 3×32×32 of the image; the last label is the one used."""
    data, first = path.read_bytes(), len(classes)
    size = first + 3 * _SIDE * _SIDE
    if not data or len(data) % size:
        raise DataError(f"{path} is not a whole number of {title} records ({len(data)} bytes)")
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, size)
    for column, count in enumerate(classes):
        check_labels(records[:, column], count, str(path), title)
    return records[:, first:].reshape(-1, 3, _SIDE, _SIDE), records[:, first - 1].long()


def _sheets(path: Path) -> tuple[Tensor, Tensor]:
    """Sheets of 20 rows × 10 columns of images, one lossless WebP each."""
    encoded, labels = read_pack(path, "sheets")
    sheets = decode(encoded, (_ROWS * _SIDE, _COLUMNS * _SIDE), pack=str(path))
    tiles = sheets.view(-1, 3, _ROWS, _SIDE, _COLUMNS, _SIDE).permute(0, 2, 4, 1, 3, 5)
    images = tiles.reshape(-1, 3, _SIDE, _SIDE)
    if not len(images) - _ROWS * _COLUMNS < len(labels) <= len(images):  # only the last sheet may have empty places
        raise DataError(f"{path} holds {len(labels)} labels, and sheets with places for {len(images)} images")
    check_labels(labels, len(CLASSES), str(path), "CIFAR-10")
    return images[: len(labels)], labels
