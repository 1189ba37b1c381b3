"""Examples in memory: a tensor for each argument of a model, some of them looked up in a table that examples share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from experiments.data.labelled import Labels, take_labels


@dataclass(frozen=True)
class Columns:
    """Tensors [N, …] by name, and labels; where there is a table of the same name, entries are rows of that."""

    columns: Mapping[str, Tensor]
    labels: Labels
    tables: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor | slice) -> Self:
        columns = {name: x[rows] for name, x in self.columns.items()}
        return replace(self, columns=columns, labels=take_labels(self.labels, rows))

    def read(self, rows: Tensor | slice) -> dict[str, Tensor]:
        found = {name: x[rows] for name, x in self.columns.items()}
        return {name: self.tables[name][x] if name in self.tables else x for name, x in found.items()}

    def to(self, device: torch.device | str) -> Self:
        columns, tables = ({n: x.to(device) for n, x in part.items()} for part in (self.columns, self.tables))
        return replace(self, columns=columns, labels=self.labels.to(device), tables=tables)
