"""Labelled examples that are read by their row numbers: what every data set is to the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from experiments.exceptions import DataError

Rows = Tensor | slice


class LazyColumn(Protocol):
    """What stands for a tensor [N, …] and is computed, or decoded from files, where rows are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Rows) -> Tensor: ...

    def take(self, rows: Rows) -> Self:
        """Only these, in this order, not read yet."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """With what lies in memory there; rows may then be there too, and what is read is."""
        ...


Column = Tensor | LazyColumn


def map_inputs(inputs: Any, function: Callable[[Any], Any]) -> Any:
    """A function of a tensor, on inputs that are one or several by name."""
    return {name: function(x) for name, x in inputs.items()} if isinstance(inputs, Mapping) else function(inputs)


@dataclass(frozen=True)
class Examples:
    """Raw inputs, as bytes of images or as tokens by the names of a model's arguments, and labels."""

    inputs: Any
    """A column, or several by name."""
    labels: Column
    """Class indices [N], or scores of answers [N, classes]."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Rows) -> Examples:
        """Only these, in this order."""

        def taken(column: Column) -> Column:
            return column[rows] if isinstance(column, Tensor) else column.take(rows)

        return Examples(map_inputs(self.inputs, taken), taken(self.labels))

    def read(self, rows: Rows) -> Any:
        """The inputs of these."""
        return map_inputs(self.inputs, lambda column: column[rows])

    def to(self, device: torch.device | str) -> Examples:
        return Examples(map_inputs(self.inputs, lambda column: column.to(device)), self.labels.to(device))


@dataclass(frozen=True)
class PreparedBatches:
    """Pairs (inputs, labels), the same at every pass, prepared on the device as they are asked for."""

    examples: Examples
    prepare: Callable[[Any], Any]
    size: int
    device: str

    def __len__(self) -> int:
        return -(-len(self.examples) // self.size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for start in range(0, len(self.examples), self.size):
            rows = slice(start, start + self.size)
            yield self._inputs(rows), self.examples.labels[rows].to(self.device)

    def first(self, count: int) -> Any:
        """The inputs of the first examples."""
        with torch.no_grad():
            return self._inputs(slice(count))

    def _inputs(self, rows: slice) -> Any:
        return self.prepare(map_inputs(self.examples.read(rows), lambda x: x.to(self.device)))


class ImageSet(NamedTuple):
    """Images [N, channels, h, w] as bytes: what may be trained on, the official test set, the names of the classes."""

    train: Examples
    test: Examples
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Lookup:
    """Rows of a table that examples share."""

    index: Tensor
    table: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Rows) -> Tensor:
        return self.table[self.index[rows]]

    def take(self, rows: Rows) -> Self:
        return type(self)(self.index[rows], self.table)

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.index.to(device), self.table.to(device))


@dataclass(frozen=True)
class Scores:
    """Scores in [0, 1] of many answers, most of them 0; dense [n, classes] where they are read."""

    answers: Tensor
    """[N, most], the answers with a score of each example, filled up with 0."""
    values: Tensor
    """[N, most], their scores, filled up with 0."""
    classes: int

    @classmethod
    def of(cls, scores: Sequence[Mapping[int, float]], classes: int) -> Self:
        """From the scores of each example, by answer."""
        answers = torch.zeros(len(scores), max((len(each) for each in scores), default=0), dtype=torch.long)
        values = torch.zeros(answers.shape)
        for row, each in enumerate(scores):
            answers[row, : len(each)] = torch.tensor(list(each), dtype=torch.long)
            values[row, : len(each)] = torch.tensor(list(each.values()))
        return cls(answers, values, classes)

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, rows: Rows) -> Tensor:
        answers, values = self.answers[rows], self.values[rows]
        return values.new_zeros(len(answers), self.classes).scatter_add_(1, answers, values)

    def take(self, rows: Rows) -> Self:
        return type(self)(self.answers[rows], self.values[rows], self.classes)

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.answers.to(device), self.values.to(device), self.classes)


def majority(labels: Column) -> float:
    """How right the answer is that is right most often, given to every example."""
    scores = labels[:]
    if not scores.is_floating_point():
        return scores.bincount().max().item() / len(scores)
    shares = scores.double().mean(0)
    return max(*shares.tolist(), 1 - shares[0].item()) if len(shares) == 1 else shares.max().item()


def hold_out(examples: Examples, count: int, seed: int = 0) -> tuple[Examples, Examples]:
    """The examples without ``count`` random ones, and those: the same ones for the same seed."""
    if not 0 < count < len(examples):
        raise DataError(f"{count} of {len(examples)} examples cannot be held out: some must be left on both sides")
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    return examples.take(order[count:]), examples.take(order[:count])


def in_some_groups(groups: Sequence[Any], share: float) -> Tensor:
    """Which examples belong to a random share of the groups [N]: the same ones always, and at least one group."""
    names = sorted(set(groups))
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(0)).tolist()
    chosen = {names[place] for place in order[: max(1, round(share * len(names)))]}
    return torch.tensor([group in chosen for group in groups])


def check_labels(labels: Tensor, classes: int, where: str, what: str) -> None:
    """Refuse labels outside 0 … ``classes`` − 1."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise DataError(f"{where} has a label {int(wrong[0])}: this is not {what}, which has {classes} classes")
