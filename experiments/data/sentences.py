"""Sentences with labels (SST-2)."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.data.text_files import find, read_table
from experiments.exceptions import DataError

FILES = ("train.tsv", "dev.tsv", "test.tsv")
ZIPPED = tuple(f"{file}.gz" for file in FILES)
SENTIMENTS = ("negative", "positive")
_SENTENCE = ("sentence", "content", "text")


class Sentences(NamedTuple):
    """Sentences, and their class indices [N]."""

    texts: list[str]
    labels: Tensor


class SentenceSet(NamedTuple):
    """A data set of sentences; ``test`` is None where its labels are not published, as in GLUE itself."""

    train: Sentences
    dev: Sentences
    test: Sentences | None
    classes: tuple[str, ...]


def sst2(folder: Path | None = None) -> SentenceSet:
    """67,349, 872 and 1,821 sentences from film reviews, negative or positive."""
    remedy = "get SST-2 of GLUE (gluebenchmark.com/tasks)"
    place, files = find("sst2", folder, [FILES, ZIPPED], remedy, also=["SST-2"])
    train, dev, test = (_read_tsv(place / file) for file in files)
    if train is None or dev is None:
        raise DataError(f"{place / files[0 if train is None else 1]} has no column 'label'")
    return SentenceSet(train, dev, test, SENTIMENTS)


def _read_tsv(path: Path) -> Sentences | None:
    """Columns as its first line names them, without quoting; None without a column of labels."""
    rows = read_table(path, delimiter="\t", quoting=csv.QUOTE_NONE)
    named = next((name for name in _SENTENCE if rows and name in rows[0]), None)
    if named is None:
        raise DataError(f"{path} holds no sentences: its first line should name a column 'sentence', and lines follow")
    labels = []
    for number, row in enumerate(rows, 2):
        if "label" in row and row["label"] not in ("0", "1"):
            raise DataError(f"line {number} of {path} has the label {row['label']!r} instead of 0 or 1")
        labels.append(int(row.get("label", -1)))
    return Sentences([row[named].strip() for row in rows], torch.tensor(labels)) if "label" in rows[0] else None
