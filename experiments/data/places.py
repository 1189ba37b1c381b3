"""Where data sets are looked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from experiments.faults import DataError

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
