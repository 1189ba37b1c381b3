"""A folder of results: rows, scores per example, thumbnails. It can be added to while it is read, and after a kill.

rows.jsonl          one row per line; a later line with the same row, method and seed replaces the earlier one
scores/*.npz        confidence, correctness, label, target; held_out_confidence, held_out_correctness
examples.npz        images of the first test examples, names of the classes; examples-<row>.npz where experiments differ
norms-<row>.npz     rules for LayerNorm against sampling, for inputs of an experiment or made-up ones
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from varprop.errors import ResultsError
from varprop.evaluation.files import Scores, load, lock, repair, save, slug
from varprop.evaluation.rows import Row, cut_short, dump, parse
from varprop.report.norms import Norms, pack, unpack

_TEST, _HELD_OUT = ("confidence", "correctness", "label", "target"), ("held_out_confidence", "held_out_correctness")


@dataclass(frozen=True)
class Examples:
    """Thumbnails [N, h, w] or [N, h, w, 3] of the first N test examples, and names of the classes."""

    images: np.ndarray
    names: tuple[str, ...] = ()


class Results:
    """A results folder. It is made when the first row is added; nothing of it is kept in memory."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._file = self.folder / "rows.jsonl"

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, in the order in which they first appeared."""
        return self._read()[0]

    @property
    def problems(self) -> tuple[str, ...]:
        """What was skipped: the last line, where writing it was cut short."""
        return self._read()[1]

    def has(self, row: str, method: str, seed: int) -> bool:
        return (row, method, seed) in {found.key for found in self.rows}

    def add(self, row: Row, scores: Mapping[str, Any] | None = None) -> Row:
        """Write a row, replacing one with the same key; returns it with the place of its scores.

        The line is written last and at once: after a kill the row is there with its scores, or it is not there.
        """
        row = replace(row, scores=None)
        with self._locked() as file:
            self._read()  # refuses a folder that holds something else
            if scores is not None:
                arrays = _checked(row, scores)
                row = replace(row, scores=self._place(row))
                save(self.folder / str(row.scores), arrays)
            repair(file)
            file.write(dump(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return row

    def scores(self, row: Row) -> Scores | None:
        """What the row's method said about each test example; None if that was not kept."""
        if row.scores is None:
            return None
        path = self.folder / row.scores
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise ResultsError(f"{self._file}: the scores of {row.key} lie outside the folder, at {row.scores}")
        return _checked(row, load(path), str(path))

    def add_examples(self, images: np.ndarray, names: Sequence[str] = (), row: str | None = None) -> None:
        """Keep thumbnails of the first test examples, uint8; of one experiment, or of the only one in the folder."""
        images = np.asarray(images)
        _check_images(images, "the thumbnails")
        with self._locked():
            save(self._examples_file(row), {"images": images, "names": np.array(list(names), dtype=np.str_)})

    def examples(self, row: str) -> Examples | None:
        """Thumbnails of an experiment. ``examples.npz`` can only be meant if the folder has one experiment."""
        paths = [self._examples_file(row)]
        if len({found.row for found in self.rows}) == 1:
            paths.append(self._examples_file(None))
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            return None
        arrays = load(path)
        _check_images(arrays.get("images"), str(path))
        return Examples(arrays["images"], tuple(map(str, arrays.get("names", ()))))

    def add_norms(self, row: str, found: Sequence[Norms]) -> None:
        """Keep comparisons of rules for LayerNorm: those of an experiment, or ``"synthetic"`` ones."""
        if not found:
            raise ResultsError(f"there is no comparison of norms to keep for {row}; give at least one")
        with self._locked():
            save(self._norms_file(row), pack(found))

    def norms(self, row: str) -> tuple[Norms, ...]:
        """What ``add_norms`` kept; nothing if it was not called."""
        path = self._norms_file(row)
        return unpack(load(path), str(path)) if path.is_file() else ()

    def publish(self, out: str | os.PathLike[str], keep: Callable[[Row], bool]) -> Results:
        """Write a copy that is small enough to share: all rows, but scores per example only of those to ``keep``."""
        copy = Results(out)
        if copy.folder.resolve() == self.folder.resolve() or copy.rows:
            raise ResultsError(f"{out} holds results already; choose an empty folder for the copy")
        rows = [row if row.scores and keep(row) else replace(row, scores=None) for row in self.rows]
        files = [
            self.folder / row.scores for row in rows if row.scores and self.scores(row)
        ]  # whole, and in the folder
        files += sorted((*self.folder.glob("examples*.npz"), *self.folder.glob("norms-*.npz")))
        with copy._locked() as lines:
            for path in files:
                target = copy.folder / path.relative_to(self.folder)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, target)
            lines.write("".join(f"{dump(row)}\n" for row in rows).encode())
        return copy

    def _norms_file(self, row: str) -> Path:
        return self.folder / f"norms-{slug(row)}.npz"

    def _examples_file(self, row: str | None) -> Path:
        return self.folder / ("examples.npz" if row is None else f"examples-{slug(row)}.npz")

    def _place(self, row: Row) -> str:
        """scores/<row>-<method>-<seed>.npz, with a suffix if another row is already there."""
        name = f"scores/{slug(row.row)}-{slug(row.method)}-{row.seed}.npz"
        others = {other.scores.casefold() for other in self.rows if other.key != row.key and other.scores}
        if name.casefold() in others:
            name = f"{name.removesuffix('.npz')}-{hashlib.sha256(repr(row.key).encode()).hexdigest()[:8]}.npz"
        return name

    def _read(self) -> tuple[tuple[Row, ...], tuple[str, ...]]:
        try:
            text = self._file.read_bytes()
        except FileNotFoundError:
            return (), ()
        except OSError as error:
            raise ResultsError(f"cannot read {self._file}: {error.strerror}; give a results folder") from None
        lines = text.decode(errors="replace").split("\n")
        problems: tuple[str, ...] = ()
        if lines[-1] and cut_short(lines[-1]):
            problems = (f"{self._file}, line {len(lines)} was cut short and is skipped: run what it held again",)
            lines.pop()
        found = [parse(line, f"{self._file}, line {i}") for i, line in enumerate(lines, 1) if line.strip()]
        return tuple({row.key: row for row in found}.values()), problems

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """The rows, open for appending by nobody else, so that processes can share a folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab+") as file:
                lock(file)
                yield file
        except OSError as error:
            reason = error.strerror or error
            raise ResultsError(f"cannot write to {self.folder}: {reason}; choose another folder") from error


def read_results(folder: str | os.PathLike[str]) -> Results:
    """The results in a folder that must exist, hold at least one row, and be whole."""
    results = Results(folder)
    if not results.folder.is_dir():
        raise ResultsError(f"there is no folder {folder}; give the folder that holds rows.jsonl")
    if not results.rows:
        raise ResultsError(
            f"{folder} holds no results: rows.jsonl is missing or empty; run an evaluation into it first"
        )
    return results


def _checked(row: Row, scores: Mapping[str, Any], where: str = "the scores") -> Scores:
    arrays = {name: np.asarray(value) for name, value in scores.items() if name in _TEST + _HELD_OUT}
    for name in ("confidence", "correctness"):
        if name not in arrays:
            raise ResultsError(f"{where} of {row.key} lack {name}")
    if ("held_out_confidence" in arrays) != ("held_out_correctness" in arrays):
        raise ResultsError(f"{where} of {row.key} have only one of {' and '.join(_HELD_OUT)}; give both or none")
    for name, value in arrays.items():
        length = row.examples if name in _TEST else len(arrays["held_out_confidence"])
        if value.shape != (length,):
            raise ResultsError(f"{where} of {row.key}: {name} has shape {list(value.shape)}, not [{length}]")
        if value.dtype.kind not in "biuf" or not np.isfinite(value).all():
            raise ResultsError(f"{where} of {row.key}: {name} must hold finite numbers")
        if name.endswith("correctness") and not ((value >= 0) & (value <= 1)).all():
            raise ResultsError(f"{where} of {row.key}: {name} must lie in [0, 1]")
    # Numbers to compute with, also where bools or integers were given.
    wide = {name: arrays[name].astype(np.float64) for name in arrays if name.endswith("correctness")}
    wide |= {
        n: arrays[n].astype(np.float64) for n in arrays if n.endswith("confidence") and arrays[n].dtype.kind != "f"
    }
    return arrays | wide


def _check_images(images: np.ndarray | None, where: str) -> None:
    if images is None or images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
        shape = "nothing" if images is None else f"{images.dtype} {list(images.shape)}"
        raise ResultsError(f"{where} must be uint8 [N, h, w] or [N, h, w, 3], not {shape}")
