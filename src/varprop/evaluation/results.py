"""Results: what each method scored with each seed, kept in one file of a folder.

The file is an SQLite database, so that processes can add to it at once, and that after a kill a row is there with its
scores or not at all. It holds rows as compressed JSON, and arrays as npz files, which are read without unpickling.
"""

from __future__ import annotations

import json
import numbers
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from varprop.errors import ResultsError
from varprop.evaluation.arrays import Examples, Scores, checked, pack, unpack

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

FIDELITY = ("variance_ratio", "correlation", "mean_error", "plain_error")
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
        for name, holds, wanted in _CHECKS:
            value = getattr(self, name)
            if not holds(value):
                shown = repr(value)
                shown = shown if len(shown) < 80 else f"{shown[:77]}..."
                raise ResultsError(f"not a result row: {name} must be {wanted}, not {shown}")

    @property
    def key(self) -> tuple[str, str, int]:
        return self.row, self.method, self.seed


def _named(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= LONGEST_NAME


def _number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _measured(value: Any, names: Sequence[str] | None = None) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(k, str) and _number(v) and (names is None or k in names) for k, v in value.items()
    )


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and all(
        isinstance(entry, Mapping)
        and isinstance(entry.get("path"), str)
        and all(entry.get(name) is None or _number(entry[name]) for name in FIDELITY)
        for entry in value
    )


def _curved(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == POINTS and all(_number(v) and 0 <= v <= 1 for v in value)


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("row", _named, f"a name of at most {LONGEST_NAME} printable characters"),
    ("method", _named, f"a name of at most {LONGEST_NAME} printable characters"),
    ("seed", lambda v: type(v) is int and abs(v) < 2**63, "a whole number of at most 63 bits"),
    ("examples", lambda v: type(v) is int and v > 0, "a whole number above 0"),
    ("metrics", lambda v: bool(v) and _measured(v, METRICS), f"numbers for {', '.join(METRICS)}"),
    ("cost", lambda v: v is None or _measured(v, ("plain", "sample")), "numbers for plain and sample"),
    ("scales", lambda v: v is None or _measured(v), "numbers by module path, or None"),
    ("fidelity", lambda v: v is None or _listed(v), "a list of entries with a path and numbers, or None"),
    ("curve", lambda v: v is None or _curved(v), f"{POINTS} numbers in [0, 1], or None"),
)


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
        packed = None if scores is None else pack(checked(scores, row.key, row.examples))
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
        where = f"{self.file}: the scores"
        return checked(unpack(found[0][0], f"{where} of {row.key}"), row.key, row.examples, where)

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
        """Of what ``keep`` was given."""
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
