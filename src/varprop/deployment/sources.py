"""Data of any size, read piece by piece: Parquet, Hugging Face data sets, WebDataset's tar files, folders of images."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from varprop.deployment.exporting import import_optional
from varprop.errors import InputError

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
STATE = "state.json"
"""What ``save_to_disk`` of Hugging Face's data sets writes beside its Arrow files."""
PROBLEM = "__problem__"
"""The column that says why a row cannot be read; the others are not there then."""
ENDS = 2**16
"""Bytes at either end of a file that go into its fingerprint."""
MOST_BYTES = 2**28
"""Size of the largest file that is read as a whole."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Piece(ABC):
    """A file of the data, or a folder of images, whose rows have an order; ``root`` holds all that may be read."""

    root: Path
    name: str

    keys: ClassVar[tuple[str, ...]] = ()
    """The columns by which a row is found again."""

    @property
    def path(self) -> Path:
        return inside(self.root, self.name)

    @cached_property
    @abstractmethod
    def count(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[Row]:
        """Some of the rows, with the given columns and the keys; only what is asked for is read."""

    def types(self) -> dict[str, Any]:
        """Arrow's types of the columns, where the file has some; values of others are taken as texts."""
        return {}

    def fingerprint(self) -> list[Any]:
        """Differs, as far as one can tell without reading all of it, if the rows do: Parquet ends in its statistics."""
        size, ends = self.path.stat().st_size, hashlib.sha256()
        with self.path.open("rb") as file:
            for place in (0, max(0, size - ENDS)):
                file.seek(place)
                ends.update(file.read(ENDS))
        return [self.name, size, self.count, ends.hexdigest()[:16]]


class Parquet(Piece):
    """A Parquet file."""

    @cached_property
    def count(self) -> int:
        return import_optional("pyarrow.parquet", "score").read_metadata(self.path).num_rows

    def types(self) -> dict[str, Any]:
        schema = import_optional("pyarrow.parquet", "score").read_schema(self.path)
        return {field.name: field.type for field in schema}

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[Row]:
        file = import_optional("pyarrow.parquet", "score").ParquetFile(self.path)
        names = _present(columns, file.schema_arrow.names, self.name)
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = list(itertools.accumulate(sizes))
        groups = [i for i, end in enumerate(ends) if end > start and end - sizes[i] < stop]
        first = ends[groups[0]] - sizes[groups[0]] if groups else 0
        batches = file.iter_batches(batch_size=256, row_groups=groups, columns=names)
        yield from _rows(batches, start - first, stop - first, self.root)


class ArrowStream(Piece):
    """A file of a Hugging Face data set that was saved to disk."""

    def _stream(self) -> Any:
        """Batch by batch, not as a table: compressed data would be in memory as a whole."""
        arrow = import_optional("pyarrow", "score")
        return arrow.ipc.open_stream(arrow.memory_map(str(self.path)))

    @cached_property
    def count(self) -> int:
        return sum(batch.num_rows for batch in self._stream())

    def types(self) -> dict[str, Any]:
        return {field.name: field.type for field in self._stream().schema}

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[Row]:
        cut = (
            part.select(_present(columns, part.schema.names, self.name)).slice(low, 256)
            for part in self._stream()
            for low in range(0, part.num_rows, 256)
        )
        yield from _rows(cut, start, stop, self.root)


class Tar(Piece):
    """A tar file of WebDataset: neighbours with the same name up to its first dot are one row.

    ``.jpg`` and its kin are the column ``image``, ``.txt`` is ``text``, ``x.npy`` the array ``x``, ``.cls`` the number
    ``cls``; ``.json`` holds further columns.
    """

    keys: ClassVar[tuple[str, ...]] = ("__key__",)

    @cached_property
    def samples(self) -> list[tuple[str, list[tuple[str, int, int]]]]:
        """The key of every row, and ending, place and size of each of its files."""
        found: list[tuple[str, list[tuple[str, int, int]]]] = []
        try:
            with tarfile.open(self.path, "r:") as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # which would grow
                    if not member.isreg():
                        continue
                    folder, _, base = member.name.rpartition("/")
                    stem, _, ending = base.partition(".")
                    key = f"{folder}/{stem}" if folder else stem
                    if not found or found[-1][0] != key:
                        found.append((key, []))
                    found[-1][1].append((ending.lower(), member.offset_data, member.size))
        except tarfile.TarError as error:
            raise InputError(f"{self.path} is no tar file, or a compressed one: {error}") from error
        return found

    @cached_property
    def count(self) -> int:
        return len(self.samples)

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[Row]:
        with self.path.open("rb") as file:
            for key, parts in self.samples[start:stop]:
                row: Row = {}
                try:
                    for ending, place, size in parts:
                        file.seek(place)
                        row |= _decoded(ending, file.read(_checked(size)))
                    yield {"__key__": key} | {name: row.get(name) for name in columns}
                except (ValueError, MemoryError, InputError) as error:  # the second of arrays with a false header
                    yield {"__key__": key, PROBLEM: str(error)}


class Images(Piece):
    """The images in one folder, by name; folders inside are pieces of their own."""

    keys: ClassVar[tuple[str, ...]] = ("path",)

    @cached_property
    def files(self) -> list[str]:
        with os.scandir(self.path) as entries:
            return sorted(each.name for each in entries if each.name.lower().endswith(IMAGES))

    @cached_property
    def count(self) -> int:
        return len(self.files)

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[Row]:
        for name in self.files[start:stop]:
            relative = (Path(self.name) / name).as_posix()
            try:
                yield {"path": relative, "image": _content(self.root, relative)}
            except (OSError, InputError) as error:
                yield {"path": relative, PROBLEM: str(error)}

    def fingerprint(self) -> list[Any]:
        return [self.name, self.count, *self.files[:1], *self.files[-1:]]


def pieces_of(data: str | os.PathLike[str]) -> list[Piece]:
    """The pieces of a file or folder, in the order of their names."""
    place = Path(data)
    if not place.exists():
        raise InputError(f"there are no data at {place}")
    root = place if place.is_dir() else place.parent
    kinds: dict[str, type[Piece]] = {".parquet": Parquet, ".tar": Tar, ".arrow": ArrowStream}
    if place.is_file():
        if place.suffix not in kinds:
            raise InputError(f"{place.name} is not read: data are {', '.join(kinds)} files or a folder of images")
        return [kinds[place.suffix](root, place.name)]
    if (place / STATE).is_file():
        listed = json.loads((place / STATE).read_text())["_data_files"]
        return [ArrowStream(root, str(each["filename"])) for each in listed]
    names = sorted(_walk(root))
    for ending, kind in kinds.items():
        if chosen := [name for name in names if name.endswith(ending)]:
            return [kind(root, name) for name in chosen]
    folders = sorted({str(Path(name).parent) for name in names if name.lower().endswith(IMAGES)})
    if not folders:
        raise InputError(f"{place} has no Parquet files, no Arrow files, no tar files and no images")
    return [Images(root, folder) for folder in folders]


def inside(root: Path, name: str) -> Path:
    """A file below ``root``; links and ``..`` that lead elsewhere are refused."""
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{name} leads outside of the data, to {path.resolve()}: it is not read")
    return path


def _walk(root: Path) -> Iterator[str]:
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if not name.startswith((".", "_"))]
        yield from (str((Path(folder) / name).relative_to(root)) for name in files if not name.startswith((".", "_")))


def _present(columns: Sequence[str], names: Sequence[str], file: str) -> list[str]:
    if absent := [name for name in columns if name not in names]:
        raise InputError(f"{file} has no column {', '.join(absent)}; it has {', '.join(names)}")
    return list(columns)


def _rows(batches: Iterator[Any], start: int, stop: int, root: Path) -> Iterator[Row]:
    """Those with the given numbers, of Arrow's record batches."""
    seen = 0
    for batch in batches:
        low, high = max(0, start - seen), min(batch.num_rows, stop - seen)
        seen += batch.num_rows
        if low < high:
            part = batch.slice(low, high - low)
            columns = {name: _values(part.column(name), root) for name in part.schema.names}
            for values in zip(*columns.values(), strict=True):
                wrong = [str(value) for value in values if isinstance(value, Exception)]
                row = dict(zip(columns, values, strict=True))
                yield row | {PROBLEM: wrong[0]} if wrong else row
        if seen >= stop:
            return


def _values(column: Any, root: Path) -> list[Any]:
    """Of an Arrow column: tensors as arrays, an image of Hugging Face's as bytes."""
    if hasattr(column, "to_numpy_ndarray"):
        return list(column.to_numpy_ndarray())
    values = column.to_pylist()
    if str(column.type).startswith("struct<bytes: binary"):
        return [_image_bytes(value, root) for value in values]
    return values


def _image_bytes(value: Any, root: Path) -> Any:
    """The bytes, those of the file that is named, or the error that keeps it from being read."""
    if value is None or value["bytes"] is not None or not value.get("path"):
        return None if value is None else value["bytes"]
    try:
        return _content(root, value["path"])
    except (OSError, InputError) as error:
        return error


def _content(root: Path, name: str) -> bytes:
    path = inside(root, name)
    _checked(path.stat().st_size)
    return path.read_bytes()


def _checked(size: int) -> int:
    if size > MOST_BYTES:
        raise InputError(f"a file has {size:,} bytes, more than {MOST_BYTES:,}")
    return size


def _decoded(ending: str, content: bytes) -> Row:
    if f".{ending.rpartition('.')[2]}" in IMAGES:
        return {"image": content}
    if ending == "txt":
        return {"text": content.decode()}
    if ending == "cls":
        return {"cls": int(content)}
    if ending == "json":
        found = json.loads(content)
        return found if isinstance(found, dict) else {"json": found}
    if ending.endswith("npy"):
        name = ending.removesuffix(".npy") if "." in ending else "input"
        return {name: np.load(io.BytesIO(content), allow_pickle=False)}
    return {}
