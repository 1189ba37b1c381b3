"""CIFAR-10: the official binary version, or lossless sheets of images packed in npz files."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from varprop.data.images import Images, Split
from varprop.data.places import find
from varprop.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PARTS = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
PACKS = (*(f"train_{i}.npz" for i in range(1, 6)), "test.npz")
ARCHIVE = "cifar-10-binary.tar.gz"
_RECORD, _SIDE = 3073, 32


def cifar10(folder: str | os.PathLike[str] | None = None) -> Images:
    """50,000 and 10,000 images of 32×32, in the official order."""
    remedy = f"get the binary version ({ARCHIVE}; the pickled one is not read)"
    place = find("cifar10", folder, [PARTS, PACKS, [ARCHIVE]], remedy)
    if all((place / part).is_file() for part in PARTS):
        parts = [_records((place / part).read_bytes(), str(place / part)) for part in PARTS]
    elif (place / ARCHIVE).is_file():
        parts = _archive(place / ARCHIVE)
    else:
        parts = [_pack(place / pack) for pack in PACKS]
    train = Split(torch.cat([part.images for part in parts[:-1]]), torch.cat([part.labels for part in parts[:-1]]))
    return Images("cifar10", train, parts[-1], CLASSES)


def _records(data: bytes, where: str) -> Split:
    """A label and 3×32×32 bytes each."""
    if not data or len(data) % _RECORD:
        raise DataError(f"{where} is not a whole number of CIFAR-10 records ({len(data)} bytes)")
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, _RECORD)
    return _checked(Split(records[:, 1:].reshape(-1, 3, _SIDE, _SIDE), records[:, 0].long()), where)


def _archive(path: Path) -> list[Split]:
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = Path(member.name).name
                file = archive.extractfile(member) if name in PARTS else None
                if file is not None:
                    found[name] = file.read()
            while stream.read(1 << 20):  # the checksum is behind the end of the archive
                pass
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole archive: {error}") from None
    missing = [part for part in PARTS if part not in found]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}")
    return [_records(found[part], f"{path}:{part}") for part in PARTS]


def _pack(path: Path) -> Split:
    """Sheets of 20 rows × 10 columns of images, one lossless WebP each."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError("packed images are decoded with Pillow: pip install pillow") from None
    try:
        # Opened here, because NumPy leaves a file open that turns out not to be an npz.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as pack:
            data, ends, labels = pack["sheets"].tobytes(), pack["ends"].tolist(), pack["labels"].astype(np.int64)
        sheets = [
            _tiles(np.asarray(Image.open(io.BytesIO(data[start:end])).convert("RGB")))
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a whole pack of images: {error}") from None
    images = np.concatenate(sheets)
    if not len(images) - len(sheets[-1]) < len(labels) <= len(images):  # only the last sheet may have empty places
        raise DataError(f"{path} holds {len(labels)} labels, and sheets with places for {len(images)} images")
    return _checked(Split(torch.from_numpy(images[: len(labels)]), torch.from_numpy(labels)), str(path))


def _tiles(sheet: np.ndarray) -> np.ndarray:
    """The images of a sheet, row by row: [N, 3, 32, 32]."""
    tiles = sheet.reshape(sheet.shape[0] // _SIDE, _SIDE, sheet.shape[1] // _SIDE, _SIDE, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, _SIDE, _SIDE)


def _checked(split: Split, where: str) -> Split:
    low, high = int(split.labels.min()), int(split.labels.max())
    if low < 0 or high >= len(CLASSES):
        raise DataError(f"{where} has a label {low if low < 0 else high}: this is not CIFAR-10")
    return split
