"""Trace: what flows through a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from varprop.moments import Moments


@dataclass(frozen=True)
class Trace(Mapping[str, Moments | Tensor]):
    """What flows through a network: ``trace[path]`` is what a module returns, ``trace.inputs[path]`` what it gets.

    Values are ``Moments`` where variance flows and plain tensors where none does. A module called
    again appears as ``path#2``; the whole model is ``""``.
    """

    outputs: Mapping[str, Moments | Tensor]
    inputs: Mapping[str, Moments | Tensor]

    def __getitem__(self, path: str) -> Moments | Tensor:
        return self.outputs[path]

    def __iter__(self) -> Any:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)
