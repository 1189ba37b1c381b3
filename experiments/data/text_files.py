"""Where the files of a data set are looked for; tables and JSON in them, or an error that names file and line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.exceptions import DataError

VARIABLE = "VARPROP_DATA"
"""Environment variable: a folder that holds a folder for each data set."""


def find(
    name: str,
    folder: Path | None,
    wanted: Sequence[Sequence[str]],
    remedy: str,
    also: Sequence[str] = (),
) -> tuple[Path, Sequence[str]]:
    """The first folder with all files of one of the ``wanted`` lists, and that list.

    A data set's folder has its name or one of ``also``; a single file may lie directly in the root.
    """
    candidates = _candidates((name, *also), folder, wanted)
    for place, files in candidates:
        if all((place / file).is_file() for file in files):
            return place, files
    listed = ", ".join(dict.fromkeys(str(place) for place, _ in candidates))
    forms = " or ".join(_short(files) for files in wanted)
    raise DataError(
        f"{name} is not in {listed}; wanted: {forms}{_almost(candidates)}; {remedy}, and give its folder, "
        f"or set {VARIABLE} to the one above it"
    )


def roots(folder: Path | None) -> list[Path]:
    """The folder that was given, or else those where data usually lies."""
    if folder is not None:
        return [folder.expanduser()]
    named = os.environ.get(VARIABLE)
    return [*([Path(named).expanduser()] if named else []), Path("data"), Path("/usr/share/datasets")]


def _candidates(
    names: Sequence[str], folder: Path | None, wanted: Sequence[Sequence[str]]
) -> list[tuple[Path, Sequence[str]]]:
    if folder is not None:
        return [(root / name, files) for root in roots(folder) for name in ("", *names) for files in wanted]
    inside = [(root / name, files) for root in roots(None) for name in names for files in wanted]
    # Files like train.tsv say nothing of what they are without a folder; a file that is everything does.
    return inside + [(root, files) for root in roots(None) for files in wanted if len(files) == 1]


def _short(files: Sequence[str]) -> str:
    return ", ".join(files) if len(files) <= 4 else f"{files[0]} … {files[-1]} ({len(files)} files)"


def _almost(candidates: Sequence[tuple[Path, Sequence[str]]]) -> str:
    """What is missing where something is there."""
    for place, files in candidates:
        missing = [file for file in files if not (place / file).is_file()]
        if len(missing) < len(files):
            return f" ({place} lacks {_short(missing)})"
    return ""


def read_bytes(path: Path) -> bytes:
    """Unpacked, if the file is one of gzip."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole file: {error}; get it again") from None


def read_text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text in UTF-8: {error}") from None


def read_table(path: Path, **dialect: Any) -> list[dict[str, str]]:
    """A dict for each line below the header."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path), newline=""), **dialect))
    except csv.Error as error:
        raise DataError(f"{path} is not a table: {error}") from None
    for number, row in enumerate(rows, 2):  # the first line is the header
        if None in row or None in row.values():
            raise DataError(f"line {number} of {path} has not as many columns as its header")
    return rows


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"line {error.lineno}, column {error.colno} of {path} is not JSON: {error.msg}") from None


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects, one in each line, and where each is, for errors."""
    for number, line in enumerate(read_text(path).splitlines(), 1):
        where = f"line {number} of {path}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where} is not JSON: {error.msg}") from None
        if not isinstance(entry, dict):
            raise DataError(f"{where} is not a JSON object")
        yield where, entry
