"""Sentences with labels (SST-2), and what a tokenizer makes of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from experiments.data.archives import content, gunzip
from experiments.data.places import find
from varprop.errors import DataError

FILES = ("train.tsv", "dev.tsv", "test.tsv")
ZIPPED = tuple(f"{file}.gz" for file in FILES)
SENTIMENTS = ("negative", "positive")
_SENTENCE = ("sentence", "content", "text")


@dataclass(frozen=True)
class Sentences:
    """Sentences, and their class indices [N]."""

    sentences: list[str]
    labels: Tensor

    def __post_init__(self) -> None:
        if len(self.sentences) != len(self.labels):
            raise DataError(f"{len(self.sentences)} sentences and {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.sentences)


@dataclass(frozen=True)
class Texts:
    """A data set of sentences; ``test`` is None where its labels are not published, as in GLUE itself."""

    name: str
    train: Sentences
    dev: Sentences
    test: Sentences | None
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Tokens:
    """Tokens [N, length], padded to one length, under the names of a model's arguments; class indices [N]."""

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    token_type_ids: Tensor | None = None

    def __post_init__(self) -> None:
        for name, tensor in self._inputs().items():
            if tensor.shape != self.input_ids.shape or tensor.ndim != 2 or tensor.dtype != torch.int64:
                raise DataError(
                    f"{name} is {tensor.dtype} of shape {list(tensor.shape)}; "
                    "all tokens should be torch.int64 of one shape [N, length]"
                )
        if len(self.input_ids) != len(self.labels):
            raise DataError(f"tokens of {len(self.input_ids)} sentences and {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor | slice) -> Self:
        return type(self)(labels=self.labels[rows], **self.read(rows))

    def read(self, rows: Tensor | slice) -> dict[str, Tensor]:
        """What the model is called with."""
        return {name: tensor[rows] for name, tensor in self._inputs().items()}

    def to(self, device: torch.device | str) -> Self:
        moved = {name: tensor.to(device) for name, tensor in self._inputs().items()}
        return type(self)(labels=self.labels.to(device), **moved)

    def _inputs(self) -> dict[str, Tensor]:
        given = {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        return given if self.token_type_ids is None else {**given, "token_type_ids": self.token_type_ids}


def sst2(folder: str | os.PathLike[str] | None = None) -> Texts:
    """67,349, 872 and 1,821 sentences from film reviews, negative or positive."""
    remedy = "get SST-2 of GLUE (gluebenchmark.com/tasks)"
    place, files = find("sst2", folder, [FILES, ZIPPED], remedy, also=["SST-2"])
    train, dev, test = (_read_tsv(place / file) for file in files)
    if train is None or dev is None:
        raise DataError(f"{place / files[0 if train is None else 1]} has no column 'label'")
    return Texts("sst2", train, dev, test, SENTIMENTS)


def _read_tsv(path: Path) -> Sentences | None:
    """Columns as its first line names them, without quoting; None without a column of labels."""
    data = gunzip(path) if path.suffix == ".gz" else content(path)
    try:
        # Not splitlines(), which also divides at characters that occur in sentences.
        lines = [line.rstrip("\r") for line in data.decode("utf-8").rstrip("\r\n").split("\n")]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    header = lines[0].split("\t")
    rows = [line.split("\t") for line in lines[1:]]
    wrong = next((number for number, row in enumerate(rows, 2) if len(row) != len(header)), None)
    if wrong is not None:
        raise DataError(f"line {wrong} of {path} has {len(rows[wrong - 2])} columns, and its header {len(header)}")
    sentence = next((header.index(name) for name in _SENTENCE if name in header), None)
    if sentence is None or not rows:
        raise DataError(f"{path} holds no sentences: its first line should name a column 'sentence', and lines follow")
    if "label" not in header:
        return None
    labels = _labels([row[header.index("label")] for row in rows], path)
    return Sentences([row[sentence].strip() for row in rows], labels)


def _labels(values: list[str], path: Path) -> Tensor:
    known = {str(label): label for label in range(len(SENTIMENTS))}
    for number, value in enumerate(values, 2):  # the first line is the header
        if value not in known:
            raise DataError(f"line {number} of {path} has the label {value!r} instead of {' or '.join(known)}")
    return torch.tensor([known[value] for value in values])
