"""Examples in batches, prepared on the device as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.data.labelled import Labelled
from experiments.side_by_side import each_of


@dataclass(frozen=True)
class PreparedBatches:
    """Pairs (inputs, labels), the same at every pass."""

    examples: Labelled
    prepare: Callable[[Any], Any]
    size: int
    device: str

    def __len__(self) -> int:
        return -(-len(self.examples) // self.size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for start in range(0, len(self.examples), self.size):
            some = slice(start, start + self.size)
            raw = self.examples.read(some)
            yield self.prepare(each_of(raw, self._there)), self.examples.labels[some].to(self.device)

    def first(self, count: int) -> Any:
        """The inputs of the first examples."""
        with torch.no_grad():
            return self.prepare(each_of(self.examples.read(slice(count)), self._there))

    def _there(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)
