"""Moments: the value that flows through a propagated network."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Mean and variance of a tensor of independent entries.

    A named tuple, so that ``torch.compile``, ``torch.export`` and pytrees take it as it is, and so
    that ``mean, var = net(x)`` works.
    """

    mean: Tensor
    var: Tensor

    @property
    def std(self) -> Tensor:
        return self.var.sqrt()

    @property
    def shape(self) -> torch.Size:
        return self.mean.shape

    def divided_by(self, number: float | Tensor) -> Moments:
        return Moments(self.mean / number, self.var / number**2)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """``count`` Gaussian draws, stacked along a new first dimension."""
        noise = torch.randn(
            (count, *self.mean.shape), generator=generator, dtype=self.mean.dtype, device=self.mean.device
        )
        return self.mean + self.std * noise


def mean_of(x: Any) -> Any:
    """The mean of a random value; anything deterministic is its own mean."""
    return x.mean if isinstance(x, Moments) else x


def is_random(x: Any) -> bool:
    return isinstance(x, Moments)
