"""What is recorded of a network: the values that flow through it in a call, and what its calibration found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)


@dataclass(frozen=True)
class Calibration:
    """``nll`` is the cross-validated loss of each candidate, per held-out example; ``chosen`` is the one taken.

    ``width`` is the root of Σ var / Σ mean² over the random weights, ``noise_std`` the standard deviation of a
    regression's noise (``None`` if it was given or the outputs are classes), ``passes`` what it cost: passes over the
    examples that were kept, a backward pass counted as two.
    """

    chosen: str
    nll: dict[str, float]
    width: float
    noise_std: float | None
    examples: int
    converged: bool
    passes: float
