"""What every data set is to the rest: labelled examples that are read by their row numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from experiments.faults import DataError


@dataclass(frozen=True)
class Scores:
    """Scores in [0, 1] of many answers, most of them 0: as labels they are indexed, and what comes is dense."""

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

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """[n, classes]"""
        answers, values = self.answers[rows], self.values[rows]
        return values.new_zeros(len(answers), self.classes).scatter_add_(1, answers, values)

    def take(self, rows: Tensor | slice) -> Self:
        return type(self)(self.answers[rows], self.values[rows], self.classes)

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.answers.to(device), self.values.to(device), self.classes)


Labels = Tensor | Scores


def take_labels(labels: Labels, rows: Tensor | slice) -> Labels:
    return labels.take(rows) if isinstance(labels, Scores) else labels[rows]


def majority(labels: Labels) -> float:
    """How right the answer is that is right most often, given to every example."""
    scores = labels[:]
    if not scores.is_floating_point():
        return scores.bincount().max().item() / len(scores)
    shares = scores.double().mean(0)
    return max(*shares.tolist(), 1 - shares[0].item()) if len(shares) == 1 else shares.max().item()


class Labelled(Protocol):
    """Labels in memory, and inputs that may lie in memory or on disk."""

    @property
    def labels(self) -> Labels: ...

    def __len__(self) -> int: ...

    def take(self, rows: Tensor | slice) -> Self:
        """Only these, in this order."""
        ...

    def read(self, rows: Tensor | slice) -> Tensor | dict[str, Tensor]:
        """The raw inputs of these: bytes of images, or tokens by the names of a model's arguments."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """With what lies in memory there; ``rows`` may then be there too, and what is read is."""
        ...


L = TypeVar("L", bound=Labelled)


def hold_out(examples: L, count: int, seed: int = 0) -> tuple[L, L]:
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
