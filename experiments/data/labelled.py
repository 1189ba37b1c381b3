"""What every data set is to the rest: labelled examples that are read by their row numbers."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from experiments.faults import DataError


class Labelled(Protocol):
    """Labels in memory, and inputs that may lie in memory or on disk."""

    @property
    def labels(self) -> Tensor: ...

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


def check_labels(labels: Tensor, classes: int, where: str, what: str) -> None:
    """Refuse labels outside 0 … ``classes`` − 1."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise DataError(f"{where} has a label {int(wrong[0])}: this is not {what}, which has {classes} classes")
