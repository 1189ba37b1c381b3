"""Where data sets are looked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from experiments.data.checksums import verify
from varprop.errors import DataError

VARIABLE = "VARPROP_DATA"
"""Environment variable: a folder that holds a folder for each data set."""


def find(
    name: str,
    folder: str | os.PathLike[str] | None,
    wanted: Sequence[Sequence[str]],
    remedy: str,
    also: Sequence[str] = (),
) -> tuple[Path, Sequence[str]]:
    """The first folder with all files of one of the ``wanted`` lists, and that list; sums beside them are checked.

    A data set's folder has its name or one of ``also``; a single file may lie directly in the root.
    """
    candidates = _candidates((name, *also), folder, wanted)
    for place, files in candidates:
        if all((place / file).is_file() for file in files):
            verify(place, files)
            return place, files
    listed = ", ".join(dict.fromkeys(str(place) for place, _ in candidates))
    forms = " or ".join(_short(files) for files in wanted)
    raise DataError(
        f"{name} is not in {listed}; wanted: {forms}{_almost(candidates)}; {remedy}, and give its folder, "
        f"or set {VARIABLE} to the one above it"
    )


def _candidates(
    names: Sequence[str], folder: str | os.PathLike[str] | None, wanted: Sequence[Sequence[str]]
) -> list[tuple[Path, Sequence[str]]]:
    if folder is not None:
        root = Path(folder).expanduser()
        return [(root / name, files) for name in ("", *names) for files in wanted]
    named = os.environ.get(VARIABLE)
    roots = [Path(named).expanduser()] if named else []
    roots += [Path("data"), Path("/usr/share/datasets")]
    inside = [(root / name, files) for root in roots for name in names for files in wanted]
    # Files like train.tsv say nothing of what they are without a folder; a file that is everything does.
    return inside + [(root, files) for root in roots for files in wanted if len(files) == 1]


def _short(files: Sequence[str]) -> str:
    return ", ".join(files) if len(files) <= 4 else f"{files[0]} … {files[-1]} ({len(files)} files)"


def _almost(candidates: Sequence[tuple[Path, Sequence[str]]]) -> str:
    """What is missing where something is there."""
    for place, files in candidates:
        missing = [file for file in files if not (place / file).is_file()]
        if len(missing) < len(files):
            return f" ({place} lacks {_short(missing)})"
    return ""
