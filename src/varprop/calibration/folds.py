"""Held-out examples in memory, split into folds for cross-validation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from varprop.batch import Batch, joined
from varprop.calibration.procedure import HeldOut

PIECES = 20  # about this many, if memory allows: their gradients, compared, tell how curved the loss is
SMALLEST = 4  # a batch of one is another graph


@dataclass(frozen=True)
class Piece:
    """Examples of one fold, which go through the network together."""

    batch: Batch
    fold: int


@dataclass(frozen=True)
class Folds:
    """Examples kept in memory: all of them, or every ``stride``-th."""

    pieces: list[Piece]
    examples: int  # kept or not
    stride: int

    @property
    def of_pieces(self) -> NDArray[np.int64]:
        return np.array([piece.fold for piece in self.pieces])

    @property
    def of_examples(self) -> NDArray[np.int64]:
        """In the order of the pieces."""
        return np.repeat(self.of_pieces, [len(piece.batch) for piece in self.pieces])


def split_folds(batches: HeldOut, folds: int, most: int, micro_batch: int) -> Folds:
    """Read the batches once. Of more than 2·``most`` examples every second, fourth, … is kept.

    Folds take turns, example by example, so that a sorted set is split evenly; pieces of a fold are drawn at random.
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
        for part in parts(_shuffled(batch), size)
    ]
    return Folds(pieces, count, stride)


def _shuffled(batch: Batch) -> Batch:
    """Else pieces of a sorted set would differ by more than chance, and the loss would seem more curved than it is."""
    return batch.in_order(torch.randperm(len(batch), generator=torch.Generator().manual_seed(0)))


def _thinned(kept: list[tuple[Batch, Tensor]], stride: int) -> list[tuple[Batch, Tensor]]:
    chosen = [(batch, numbers, numbers % stride == 0) for batch, numbers in kept]
    return [(batch.take(rows), numbers[rows]) for batch, numbers, rows in chosen if bool(rows.any())]


def parts(batch: Batch, size: int) -> Iterator[Batch]:
    """At most ``size`` examples each, of nearly equal number."""
    count = -(-len(batch) // size)
    ends = [round(len(batch) * (i + 1) / count) for i in range(count)]
    for start, stop in zip([0, *ends], ends, strict=False):
        yield batch.rows(start, stop)
