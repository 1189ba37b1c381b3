"""Mean and variance of a stream of named tensors, each seen once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from varprop.posterior.tensors import widened

_Tensors = dict[str, Tensor]


class Running:
    """Welford's recurrence on displacements from the first value of the stream.

    Weights move little against their size, so in float32 E[w²] − E[w]² is mostly rounding error, and even Welford's
    mean cannot resolve steps below the spacing of floats around w. The displacement d = w − w₁ can: it is exact for
    nearby floats. With δ = d − d̄:  d̄ ← d̄ + δ/n,  S ← S + δ·(d − d̄),  mean = w₁ + d̄,  variance = S/(n − correction).

    Tensors are replaced, never changed in place: ``origin``, ``shift`` and ``squares`` taken out stay what they were.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.count = 0
        self.origin: _Tensors = {}
        self.shift: _Tensors = {}
        self.squares: _Tensors = {}

    @torch.no_grad()
    def add(self, weights: Mapping[str, Tensor]) -> None:
        """The next value of the stream; names and shapes are those of the first."""
        if not self.count:
            self.origin = {name: w.detach().to(self.device, copy=True) for name, w in weights.items()}
            self.shift = {name: torch.zeros_like(widened(w)) for name, w in self.origin.items()}
            self.squares = dict(self.shift)
        self.count += 1
        for name, origin in self.origin.items():
            start = widened(origin)
            displacement = weights[name].detach().to(origin.device).to(start.dtype) - start
            delta = displacement - self.shift[name]
            self.shift[name] = self.shift[name] + delta / self.count
            self.squares[name] = self.squares[name] + delta * (displacement - self.shift[name])

    def mean(self) -> _Tensors:
        return {name: widened(origin) + self.shift[name] for name, origin in self.origin.items()}

    def var(self, correction: int) -> _Tensors:
        """Squared deviations over ``count − correction``: 0 for the variance of the values, 1 for the unbiased one."""
        return {name: squares / (self.count - correction) for name, squares in self.squares.items()}
