"""CIFAR-10 and CIFAR-100: the official binary versions; CIFAR-10 also as lossless sheets of images in npz files."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from experiments.data.decode import decode
from experiments.data.images import Images, ImageSet
from experiments.data.labelled import check_labels
from experiments.data.packs import read_pack
from experiments.data.places import find
from experiments.faults import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PARTS = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
PACKS = (*(f"train_{i}.npz" for i in range(1, 6)), "test.npz")
ARCHIVE = "cifar-10-binary.tar.gz"
PARTS_100 = ("train.bin", "test.bin")
NAMES_100 = "fine_label_names.txt"
ARCHIVE_100 = "cifar-100-binary.tar.gz"
_SIDE, _ROWS, _COLUMNS = 32, 20, 10


@dataclass(frozen=True)
class _Format:
    """Records of a byte for each kind of label and 3×32×32 of the image; the last label is the one used."""

    title: str
    labels: tuple[int, ...]


_TEN, _HUNDRED = _Format("CIFAR-10", (10,)), _Format("CIFAR-100", (20, 100))  # coarse, then fine


def cifar10(folder: Path | None = None) -> ImageSet:
    """50,000 and 10,000 images of 32×32, in the official order."""
    remedy = f"get the binary version ({ARCHIVE} from cs.toronto.edu/~kriz/cifar.html; the pickled one is not read)"
    place, files = find("cifar10", folder, [PARTS, [ARCHIVE], PACKS], remedy, also=["cifar-10-batches-bin"])
    if files == PACKS:
        parts = [_sheets(place / pack) for pack in PACKS]
    else:
        parts = [_records(data, where, _TEN) for data, where in _contents(place, files, PARTS)]
    train = Images(torch.cat([part.images for part in parts[:-1]]), torch.cat([part.labels for part in parts[:-1]]))
    return ImageSet(train, parts[-1], CLASSES)


def cifar100(folder: Path | None = None) -> ImageSet:
    """50,000 and 10,000 images of 32×32 with their fine labels, in the official order."""
    remedy = f"get the binary version ({ARCHIVE_100} from cs.toronto.edu/~kriz/cifar.html; the pickled one is not read)"
    place, files = find("cifar100", folder, [PARTS_100, [ARCHIVE_100]], remedy, also=["cifar-100-binary"])
    *contents, (names, where) = _contents(place, files, PARTS_100, NAMES_100)
    train, test = (_records(data, where, _HUNDRED) for data, where in contents)
    return ImageSet(train, test, _names(names, where))


def _contents(place: Path, files: Sequence[str], parts: tuple[str, ...], *optional: str) -> list[tuple[bytes, str]]:
    """The parts from their own files or out of the archive, each with where it is; b"" for optional ones not there."""
    if files == parts:
        paths = [place / part for part in (*parts, *optional)]
        return [(path.read_bytes() if path.is_file() else b"", str(path)) for path in paths]
    archive = place / files[0]
    found = _members(archive, parts, optional)
    return [(found.get(part, b""), f"{archive}:{part}") for part in (*parts, *optional)]


def _members(path: Path, wanted: Collection[str], optional: Collection[str]) -> dict[str, bytes]:
    """Files of a .tar.gz by their names without folders."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = Path(member.name).name
                file = archive.extractfile(member) if name in (*wanted, *optional) else None
                if file is not None:
                    found[name] = file.read()
            while stream.read(1 << 20):  # the checksum is behind the end of the archive
                pass
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole archive: {error}; download it again") from None
    missing = [name for name in wanted if name not in found]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}")
    return found


def _records(data: bytes, where: str, form: _Format) -> Images:
    first = len(form.labels)
    size = first + 3 * _SIDE * _SIDE
    if not data or len(data) % size:
        raise DataError(f"{where} is not a whole number of {form.title} records ({len(data)} bytes)")
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, size)
    for column, classes in enumerate(form.labels):
        check_labels(records[:, column], classes, where, form.title)
    return Images(records[:, first:].reshape(-1, 3, _SIDE, _SIDE), records[:, first - 1].long())


def _names(data: bytes, where: str) -> tuple[str, ...]:
    """One name a line; numbers where there are no names."""
    count = _HUNDRED.labels[-1]
    names = tuple(data.decode("utf-8", errors="replace").split())
    if names and len(names) != count:
        raise DataError(f"{where} has {len(names)} names instead of {count}")
    return names or tuple(str(label) for label in range(count))


def _sheets(path: Path) -> Images:
    """Sheets of 20 rows × 10 columns of images, one lossless WebP each."""
    encoded, labels = read_pack(path, "sheets")
    sheets = decode(encoded, (_ROWS * _SIDE, _COLUMNS * _SIDE), pack=str(path))
    tiles = sheets.view(-1, 3, _ROWS, _SIDE, _COLUMNS, _SIDE).permute(0, 2, 4, 1, 3, 5)
    images = tiles.reshape(-1, 3, _SIDE, _SIDE)
    if not len(images) - _ROWS * _COLUMNS < len(labels) <= len(images):  # only the last sheet may have empty places
        raise DataError(f"{path} holds {len(labels)} labels, and sheets with places for {len(images)} images")
    check_labels(labels, len(CLASSES), str(path), _TEN.title)
    return Images(images[: len(labels)], labels)
