"""Results: what each method scored with each seed, kept in one file of a folder.

The file is an SQLite database, so that processes can add to it at once, and that after a kill a row is there with its
scores or not at all. It holds rows as compressed JSON, and arrays as npz files, which are read without unpickling.
"""

from __future__ import annotations

import json
import numbers
import os
import reprlib
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from varprop.errors import ResultsError
from varprop.evaluation.arrays import Examples, Scores, check_scores, pack, unpack

FILE = "results.db"
FORMAT = 2
"""Version of the file; a reader refuses every other one."""

ONE_LABEL = (
    *("accuracy", "aurc", "c@0.5", "c@1", "c@2", "c@5"),
    *("phi@10", "phi@50", "phi@100", "ece", "ace", "brier", "nll"),
)
"""The metrics of classification, one label for each example; also those of the paper."""
METRICS = (*ONE_LABEL, "f1", "rmse", "crps", "picp@95", "mpiw@95")
"""The metrics a row may have: fractions, not percentages."""

POINTS = 100
"""Of the risk-coverage curve that a row may keep: coverage 1/100, 2/100, … 1."""

LONGEST_NAME = 200

_SCHEMA = (
    "CREATE TABLE rows (row TEXT, method TEXT, seed INTEGER, entry BLOB, scores BLOB, PRIMARY KEY (row, method, seed))",
    "CREATE TABLE arrays (name TEXT PRIMARY KEY, data BLOB)",
    f"PRAGMA user_version = {FORMAT}",
)


@dataclass(frozen=True)
class Row:
    """What one method scored in one experiment with one seed. ``key`` identifies it."""

    row: str
    """The experiment, e.g. ``digits``."""
    method: str
    """Its slug, e.g. ``mc-8``."""
    seed: int
    examples: int
    """Size of the test set."""
    metrics: Mapping[str, float]
    cost: Mapping[str, float] | None = None
    """Relative wall-clock time: ``plain``, in passes of the plain network; ``sample``, of one Monte Carlo sample."""
    scales: Mapping[str, float] | None = None
    """Learned α by module path."""
    fidelity: Sequence[Mapping[str, Any]] | None = None
    """Per module: path, module, variance_ratio, correlation, mean_error, plain_error."""
    curve: Sequence[float] | None = None
    """Risk of the most confident 1, 2, …, 100 % of the test set."""
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None
    time: str | None = None
    """When it was run, ISO 8601."""

    def __post_init__(self) -> None:
        name = f"a name of at most {LONGEST_NAME} printable characters"
        metrics = f"numbers for {', '.join(METRICS)}"
        checks = {
            "row": (_is_name(self.row), name),
            "method": (_is_name(self.method), name),
            "seed": (type(self.seed) is int and abs(self.seed) < 2**63, "a whole number of at most 63 bits"),
            "examples": (type(self.examples) is int and self.examples > 0, "a whole number above 0"),
            "metrics": (bool(self.metrics) and _are_numbers(self.metrics, METRICS), metrics),
            "cost": (self.cost is None or _are_numbers(self.cost, ("plain", "sample")), "numbers for plain and sample"),
            "curve": (self.curve is None or _is_curve(self.curve), f"{POINTS} numbers in [0, 1], or None"),
        }
        for entry, (right, wanted) in checks.items():
            if not right:
                shown = reprlib.repr(getattr(self, entry))
                raise ResultsError(f"not a result row: {entry} must be {wanted}, not {shown}")

    @property
    def key(self) -> tuple[str, str, int]:
        return self.row, self.method, self.seed


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= LONGEST_NAME


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _are_numbers(value: Any, names: Sequence[str]) -> bool:
    return isinstance(value, Mapping) and all(name in names and _is_number(number) for name, number in value.items())


def _is_curve(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == POINTS and all(_is_number(v) and 0 <= v <= 1 for v in value)


class Results:
    """A results folder. It is made when the first row is added; nothing of it is kept in memory."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.file = self.folder / FILE

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, in the order in which they first appeared."""
        return tuple(_load_row(entry) for (entry,) in self._select("SELECT entry FROM rows ORDER BY rowid"))

    def add(self, row: Row, scores: Mapping[str, Any] | None = None) -> Row:
        """Write a row with its scores per example, in place of one with the same key."""
        packed = None if scores is None else pack(check_scores(scores, row.key, row.examples))
        entry = _dump_row(row)
        with self._writing() as db:
            db.execute(
                "INSERT INTO rows VALUES (?, ?, ?, ?, ?) ON CONFLICT "
                "DO UPDATE SET entry = excluded.entry, scores = excluded.scores",
                (*row.key, entry, packed),
            )
        return row

    def scores(self, row: Row) -> Scores | None:
        """What the row's method said about each test example; None if that was not kept."""
        found = self._select("SELECT scores FROM rows WHERE row = ? AND method = ? AND seed = ?", row.key)
        if not found or found[0][0] is None:
            return None
        where = f"{self.file}: scores"
        return check_scores(unpack(found[0][0], f"{where} of {row.key}"), row.key, row.examples, where)

    def keep(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Keep arrays under a name: what belongs to the results and is neither row nor score."""
        packed = pack(arrays)
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO arrays VALUES (?, ?)", (name, packed))

    def kept(self, name: str) -> Scores | None:
        """What ``keep`` was given under this name; None if nothing was."""
        found = self._select("SELECT data FROM arrays WHERE name = ?", (name,))
        return unpack(found[0][0], f"{self.file}: {name}") if found else None

    def add_examples(self, shown: np.ndarray | Sequence[str], names: Sequence[str] = (), *, row: str) -> None:
        """Keep an experiment's first test examples: thumbnails (uint8) or texts; and the names of the classes."""
        images, texts = (shown, ()) if isinstance(shown, np.ndarray) else (None, tuple(shown))
        self.keep(f"examples/{row}", Examples(images, texts, tuple(names)).arrays())

    def examples(self, row: str) -> Examples | None:
        found = self.kept(f"examples/{row}")
        return Examples.read(found) if found else None

    @property
    def names(self) -> tuple[str, ...]:
        """Under which ``keep`` was given arrays."""
        return tuple(name for (name,) in self._select("SELECT name FROM arrays ORDER BY rowid"))

    def _select(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            self.file.stat()
            with closing(self._connect("rw")) as db:  # not "ro": what a kill left half-written is rolled back
                _check_version(db, self.file)
                return db.execute(query, values).fetchall()
        except FileNotFoundError:
            return []
        except (OSError, sqlite3.Error) as error:
            raise ResultsError(f"cannot read {self.file}: {_reason(error)}; give a results folder") from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: leaving it by an error leaves the file as it was."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with closing(self._connect("rwc")) as db:
                db.execute("BEGIN IMMEDIATE")
                if not db.execute("SELECT * FROM sqlite_master").fetchall():
                    for statement in _SCHEMA:
                        db.execute(statement)
                _check_version(db, self.file)
                yield db
                db.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise ResultsError(f"cannot write to {self.folder}: {_reason(error)}; choose another folder") from error

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.file.absolute().as_uri()}?mode={mode}", timeout=120, isolation_level=None, uri=True
        )


def read_results(folder: str | os.PathLike[str]) -> Results:
    """The results in a folder that must exist and hold at least one row."""
    results = Results(folder)
    if not results.folder.is_dir():
        raise ResultsError(f"there is no folder {folder}; give the folder that holds {FILE}")
    if not results.rows:
        raise ResultsError(f"{folder} holds no results: {FILE} is missing or empty; run an evaluation into it first")
    return results


def _reason(error: Exception) -> object:
    return getattr(error, "strerror", None) or error


def _check_version(db: sqlite3.Connection, file: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version != FORMAT:
        raise ResultsError(
            f"{file} has format {version}, this varprop reads format {FORMAT}; "
            "use the varprop that wrote it, or another folder"
        )


def _dump_row(row: Row) -> bytes:
    try:
        text = json.dumps({f.name: getattr(row, f.name) for f in fields(row)}, default=_plain)
    except TypeError as error:
        raise ResultsError(
            f"the row {row.key} holds what JSON cannot ({error}); use numbers, text, lists, dicts"
        ) from None
    return zlib.compress(text.encode(), 9)


def _plain(value: Any) -> Any:
    """NumPy's and torch's scalars have ``item``; their arrays of one element do too."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a {type(value).__name__}")


def _load_row(entry: bytes) -> Row:
    found = json.loads(zlib.decompress(entry))
    lists = {name: tuple(found[name]) for name in ("fidelity", "curve") if found[name] is not None}
    return Row(**found | lists)
