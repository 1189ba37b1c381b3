"""Data of any size, scored in shards: what is finished is kept, whatever happens to the process that was at work."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop.deployment.artifact import open_artifact
from varprop.deployment.exporting import import_optional, versions
from varprop.deployment.preprocessing import Example, Preprocessor
from varprop.deployment.sources import PROBLEM, Piece, Row, pieces_of
from varprop.errors import InputError, ResultsError
from varprop.posterior.file import replacing

MANIFEST = "_manifest.json"  # readers of folders of Parquet pass over names that begin so
FORMAT = "varprop.scores"
COLUMNS = ("row", "label", "confidence", "probs", "prediction", "std", "abstain", "problem")
"""What scores are made of; which of them there are depends on the predictor."""


@dataclass(frozen=True)
class Shard:
    """Rows ``start`` to ``stop`` of a piece of the data; ``first`` is the number of its first row in all the data."""

    number: int
    piece: Piece
    start: int
    stop: int
    first: int

    @property
    def name(self) -> str:
        return f"part-{self.number:06d}.parquet"

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Job:
    """What is to be scored, with what, and where to; everything a worker must be told."""

    model: str
    data: str
    out: str
    key: tuple[str, ...]
    column: str | None
    rows: int
    batch_size: int
    device: str
    build: Callable[[], nn.Module] | None = None
    """Returns the model, where it is none that can be rebuilt."""

    @cached_property
    def preprocessor(self) -> Preprocessor:
        return Preprocessor(open_artifact(self.model, model=self.build() if self.build else None, device=self.device))

    @cached_property
    def shards(self) -> list[Shard]:
        found: list[Shard] = []
        first = 0
        for piece in pieces_of(self.data):
            for start in range(0, piece.count, self.rows):
                stop = min(start + self.rows, piece.count)
                found.append(Shard(len(found), piece, start, stop, first + start))
            first += piece.count
        if not found:
            raise InputError(f"{self.data} has no rows")
        return found

    def is_done(self, shard: Shard) -> bool:
        file = Path(self.out) / shard.name
        try:
            return import_optional("pyarrow.parquet", "score").read_metadata(file).num_rows == len(shard)
        except (OSError, ValueError):  # it is not there, or a disk has lost some of it
            return False

    def score(self, shard: Shard) -> None:
        """Write a shard, whole or not at all."""
        table = self._table(shard)
        with replacing(Path(self.out) / shard.name) as temporary:
            import_optional("pyarrow.parquet", "score").write_table(table, temporary)

    def _table(self, shard: Shard) -> Any:
        """The rows of a shard as an Arrow table, whose columns have the same types whatever the rows hold."""
        columns = self.preprocessor.columns if self.column is None else [self.column]
        rows = shard.piece.rows(shard.start, shard.stop, list(dict.fromkeys((*columns, *self.key))))
        kept, known = (*shard.piece.keys, *self.key), shard.piece.types()
        found: list[Row] = []
        while batch := list(itertools.islice(rows, self.batch_size)):
            for row, answer in zip(batch, self._answers(batch), strict=True):
                keys = {name: row.get(name) if name in known else _text(row.get(name)) for name in kept}
                found.append({"row": shard.first + len(found), **keys, **answer})
        artifact, arrow = self.preprocessor.artifact, import_optional("pyarrow", "score")
        numbers = arrow.list_(arrow.float32())
        answers = {"label": arrow.string() if artifact.classes else arrow.int64()}
        answers |= {"confidence": arrow.float32(), "probs": numbers}
        answers |= {"prediction": numbers, "std": numbers, "abstain": arrow.bool_()}
        types = {"row": arrow.int64()} | {name: known.get(name, arrow.string()) for name in kept}
        types |= {name: kind for name, kind in answers.items() if name in artifact.outputs}
        return arrow.Table.from_pylist(found, arrow.schema(types | {"problem": arrow.string()}))

    def _answers(self, rows: Sequence[Row]) -> list[Row]:
        """One for each row: what the artifact says, or the problem with the row."""
        found: list[Row] = [{} for _ in rows]
        examples: dict[int, Example] = {}
        for number, row in enumerate(rows):
            try:
                examples[number] = self._read(row)
            except InputError as error:
                found[number] = {"problem": str(error)}
        for number, answer in zip(examples, self.preprocessor.answers([*examples.values()]), strict=True):
            found[number] = answer
        return found

    def _read(self, row: Row) -> Example:
        if PROBLEM in row:
            raise InputError(row[PROBLEM])
        if self.column is not None:
            value = row[self.column]
            name = "text" if isinstance(value, str) else "image" if isinstance(value, bytes) else None
            return self.preprocessor.read({name or next(iter(self.preprocessor.inputs)): value})
        return self.preprocessor.read(row)

    def manifest(self) -> dict[str, Any]:
        """What decides the scores: a folder with another one is not resumed."""
        artifact, pieces = self.preprocessor.artifact, {id(shard.piece): shard.piece for shard in self.shards}.values()
        return {
            "format": FORMAT,
            "version": 1,
            "model": {"sha256": artifact.sha256, "classes": artifact.classes},
            "threshold": artifact.threshold,
            "versions": versions(),
            "data": [piece.fingerprint() for piece in pieces],
            "key": self.key,
            "column": self.column,
            "rows_per_shard": self.rows,
            "batch_size": self.batch_size,
        }


Engine = Callable[[Job, Sequence[Shard]], Iterable[int]]
"""Scores shards of a job, in any order; yields the number of rows of each."""


def here(job: Job, shards: Sequence[Shard]) -> Iterator[int]:
    """In this process; under ``torchrun`` and ``accelerate launch``, each process takes its share.

    Processes need not talk to each other: one that dies leaves its shards to the next run.
    """
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    for shard in shards:
        if shard.number % world == rank:  # by number: who starts late finds fewer shards left
            job.score(shard)
            yield len(shard)


def on_ray(workers: int) -> Engine:
    """With Ray Data, by so many workers of a cluster that all see the same files."""

    def engine(job: Job, shards: Sequence[Shard]) -> Iterator[int]:
        data = import_optional("ray.data", "ray")
        numbers = data.from_items([{"number": shard.number} for shard in shards], override_num_blocks=len(shards))
        gpus = int(job.device.startswith("cuda"))  # each worker sees one, its first
        fresh = replace(job)  # without the artifact that was opened here
        done = numbers.map(
            _Worker, fn_constructor_args=(fresh,), compute=data.ActorPoolStrategy(size=workers), num_gpus=gpus
        )
        for row in done.iter_rows():
            yield row["rows"]

    return engine


class _Worker:
    """Scores shards by their numbers; it opens the artifact once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        torch.set_num_threads(1)

    def __call__(self, row: Mapping[str, int]) -> dict[str, int]:
        shard = self.job.shards[row["number"]]
        if not self.job.is_done(shard):
            self.job.score(shard)
        return {"rows": len(shard)}


@dataclass(frozen=True)
class Scores:
    """What lies in the folder: how many rows, and how many of them could not be read."""

    folder: Path
    rows: int
    problems: int


def score(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    key: Sequence[str] = (),
    column: str | None = None,
    rows: int = 4096,
    batch_size: int = 64,
    device: str = "cpu",
    build: Callable[[], nn.Module] | None = None,
    engine: Engine = here,
    progress: bool = True,
) -> Scores | None:
    """Score every row of ``data`` with a predictor that was saved or exported, and write Parquet files to ``out``.

    Files are named in the order of the data, and rows have that order in them: ``row`` is the number of each in all
    the data, beside the columns ``key``, the path of an image, the key in a tar file. A row that cannot be read has a
    ``problem`` in the place of an answer. A file has ``rows`` rows; it is there as a whole or not at all, so that the
    same call resumes one that was killed. Beside them lies a manifest. Returns None where others, under
    ``torchrun``, have shards left to do.
    """
    if taken := [name for name in key if name in COLUMNS]:
        raise InputError(f"the key {taken[0]!r} is also the name of a column of the scores: rename it in the data")
    place = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if device == "cuda" else device
    job = Job(str(model), str(data), str(out), tuple(key), column, rows, batch_size, place, build)
    folder = _claimed(Path(out), job.manifest())
    left = [shard for shard in job.shards if not job.is_done(shard)]
    total = sum(map(len, job.shards))
    with tqdm(
        desc="score", unit=" rows", total=total, initial=total - sum(map(len, left)), disable=None if progress else True
    ) as bar:
        for done in engine(job, left):
            bar.update(done)
    return _finished(folder, job)


def _claimed(folder: Path, manifest: Mapping[str, Any]) -> Path:
    """The folder, if it is new or holds a part of the same scores."""
    wanted, file = json.loads(json.dumps(manifest)), folder / MANIFEST
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.glob("*.parquet")):
            _write(folder, wanted | {"complete": False})
        found = json.loads(file.read_text()) if file.exists() else None
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot write scores to {folder}: {error}; choose another folder") from error
    if found is None:
        raise ResultsError(f"{folder} holds Parquet files that are no scores: choose another folder")
    if other := [name for name, value in wanted.items() if found.get(name) != value]:
        raise ResultsError(f"{folder} holds scores with another {', '.join(other)}: choose another folder")
    return folder


def _write(folder: Path, manifest: Mapping[str, Any]) -> None:
    with replacing(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(manifest, indent=1))


def _finished(folder: Path, job: Job) -> Scores | None:
    """Complete the manifest, if all shards are there."""
    parquet, listed, problems = import_optional("pyarrow.parquet", "score"), [], 0
    for shard in job.shards:
        if not job.is_done(shard):
            return None
        wrong = len(shard) - parquet.read_table(folder / shard.name, columns=["problem"])["problem"].null_count
        listed.append({"file": shard.name, "piece": shard.piece.name, "rows": len(shard), "problems": wrong})
        problems += wrong
    total = sum(map(len, job.shards))
    _write(folder, job.manifest() | {"complete": True, "rows": total, "problems": problems, "shards": listed})
    for left in folder.glob(".part-*.tmp"):
        left.unlink(missing_ok=True)
    return Scores(folder, total, problems)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
