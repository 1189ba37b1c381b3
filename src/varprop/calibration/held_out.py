"""A held-out set: gone through several times, and dealt into folds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from varprop.batch import Batch, joined, read, refuse_nan, repeatable
from varprop.errors import InputError
from varprop.prediction.targets import labelled

PIECES = 20  # about this many, if memory allows: their gradients, compared, tell how curved the loss is
SMALLEST = 4  # a batch of one is another graph


class HeldOut:
    """Batches that can be gone through several times; none is asked for twice in the first round.

    Of ``classes``, examples without any label are left out.
    """

    def __init__(self, batches: Any, *, classes: bool = True) -> None:
        self._batches, self._classes = repeatable(batches), classes
        self._begun: Iterator[Batch] | None = read(self._batches)
        self.first = next(self._begun)

    def __iter__(self) -> Iterator[Batch]:
        begun, self._begun = self._begun, None
        found = read(self._batches) if begun is None else chain([self.first], begun)
        some = False
        for number, batch in enumerate(found, start=1):
            refuse_nan(batch, f"batch {number}")
            if self._classes:
                batch = batch.take(labelled(batch.target).reshape(len(batch), -1).any(1))
            if len(batch):
                some = True
                yield batch
        if not some:
            raise InputError("no held-out example has a label: all are -100")


@dataclass(frozen=True)
class Piece:
    """Examples of one fold, which go through the network together."""

    batch: Batch
    fold: int


@dataclass(frozen=True)
class Dealt:
    """Examples kept in memory: all of them, or each of which the number is a multiple of ``stride``."""

    pieces: list[Piece]
    examples: int  # kept or not
    stride: int

    @property
    def piece_folds(self) -> NDArray[np.int64]:
        return np.array([piece.fold for piece in self.pieces])

    @property
    def folds(self) -> NDArray[np.int64]:
        """Of each example, in the order of the pieces."""
        return np.repeat(self.piece_folds, [len(piece.batch) for piece in self.pieces])


def deal(batches: HeldOut, folds: int, most: int, micro_batch: int) -> Dealt:
    """Read the batches once. Of more than 2·``most`` examples every second, fourth, … is kept.

    Folds take turns, example by example, so that a sorted set is dealt evenly.
    """
    kept: list[tuple[Batch, Tensor]] = []  # with the numbers of the examples
    count, stride = 0, 1
    for batch in batches:
        kept += _thinned([(batch, torch.arange(count, count + len(batch)))], stride)
        count += len(batch)
        while sum(len(numbers) for _, numbers in kept) > 2 * most:
            stride *= 2
            kept = _thinned(kept, stride)
    size = min(micro_batch, max(SMALLEST, count // stride // PIECES))
    pieces = [
        Piece(part, fold)
        for fold in range(folds)
        for batch in joined([b.take(numbers // stride % folds == fold) for b, numbers in kept])
        for part in parts(batch, size)
    ]
    return Dealt(pieces, count, stride)


def _thinned(kept: list[tuple[Batch, Tensor]], stride: int) -> list[tuple[Batch, Tensor]]:
    chosen = [(batch, numbers, numbers % stride == 0) for batch, numbers in kept]
    return [(batch.take(rows), numbers[rows]) for batch, numbers, rows in chosen if bool(rows.any())]


def parts(batch: Batch, size: int) -> Iterator[Batch]:
    """At most ``size`` examples each, of nearly equal number."""
    count = -(-len(batch) // size)
    ends = [round(len(batch) * (i + 1) / count) for i in range(count)]
    for start, stop in zip([0, *ends], ends, strict=False):
        yield batch.rows(start, stop)
