"""A copy of results that is small enough for a repository."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from varprop.errors import ResultsError
from varprop.evaluation.arrays import Examples
from varprop.evaluation.results import Results, Row


def publish(
    results: Results, out: str | os.PathLike[str], keep: Callable[[Row], bool], *, thumbnails: int = 120
) -> Results:
    """All rows, scores per example of those to ``keep``, and the first thumbnails of each experiment."""
    copy = Results(out)
    if copy.folder.resolve() == results.folder.resolve() or copy.rows:
        raise ResultsError(f"{out} holds results already; choose an empty folder for the copy")
    _copy(results, copy, keep, thumbnails)
    return copy


def adopt(results: Results, folder: str | os.PathLike[str], *, thumbnails: int = 120) -> Results:
    """Rows, without scores per example, beside those of another folder, which must not have rows of the same name."""
    other = Results(folder)
    if both := {row.row for row in results.rows} & {row.row for row in other.rows}:
        raise ResultsError(f"{folder} has rows of {', '.join(sorted(both))} already: give a folder without them")
    _copy(results, other, lambda _: False, thumbnails)
    return other


def _copy(results: Results, copy: Results, keep: Callable[[Row], bool], thumbnails: int) -> None:
    for row in results.rows:
        scores = results.scores(row) if keep(row) else None
        copy.add(row, scores and {name: _small(name, value) for name, value in scores.items()})
    for name in results.names:
        arrays = results.kept(name) or {}
        if name.startswith("examples/"):
            arrays = Examples.read(arrays).first(thumbnails).arrays()
        copy.keep(name, arrays)


def _small(name: str, value: np.ndarray) -> np.ndarray:
    """Confidences with 16 bits behind the point, which compress to two bytes or so; whole numbers in few bytes."""
    if name.endswith("confidence"):
        return (np.round(value * 2.0**16) / 2.0**16).astype(np.float32)
    whole = value.size and (value == np.floor(value)).all() and value.min() >= 0
    return value.astype(np.min_scalar_type(int(value.max()))) if whole else value
