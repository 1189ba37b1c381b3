"""Moments: the value that flows through a propagated network."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

FEW = 8  # products


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

    def map_var(self, function: Callable[[Any], Any]) -> Moments:
        """With the variance that a linear ``function`` makes of it."""
        return Moments(self.mean, function(self.var))

    def divided_by(self, number: float | Tensor) -> Moments:
        return Moments(self.mean / number, self.var / number**2)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """``count`` Gaussian draws, stacked along a new first dimension."""
        noise = torch.randn(
            (count, *self.mean.shape), generator=generator, dtype=self.mean.dtype, device=self.mean.device
        )
        return self.mean + self.std * noise


class Factored(NamedTuple):
    """Moments whose variance is kept as a sum of products, rest + Σ_k coefficients[k] vectors[k].

    All have as many dimensions as the mean, after k, and are of size 1 where they do not vary: coefficients over
    features, say, and vectors over examples and tokens. Inside networks only, where the rules ask for it.
    """

    mean: Tensor
    coefficients: Tensor
    vectors: Tensor
    rest: Tensor | None = None

    @property
    def var(self) -> Tensor:
        if 0 < len(self.coefficients) <= FEW:  # not all side by side in memory
            var = functools.reduce(operator.add, map(operator.mul, self.coefficients.unbind(), self.vectors.unbind()))
        else:
            var = (self.coefficients * self.vectors).sum(0)
        var = (var if self.rest is None else var + self.rest).expand_as(self.mean)
        return var if var.dtype == self.mean.dtype else var.to(self.mean.dtype)  # numbers of tokens may be more precise

    @property
    def shape(self) -> torch.Size:
        return self.mean.shape

    def map_var(self, function: Callable[[Any], Any]) -> Factored:
        rest = None if self.rest is None else function(self.rest)
        return Factored(self.mean, function(self.coefficients), self.vectors, rest)


def moments_of(mean: Tensor, var: Tensor | None = None) -> Moments:
    """What a graph returns: without a variance it is certain."""
    return Moments(mean, torch.zeros_like(mean) if var is None else var)


def multiplied_out(value: Any) -> Any:
    """With every factored variance multiplied out."""
    return tree_map(lambda x: Moments(x.mean, x.var) if isinstance(x, Factored) else x, value, is_leaf=is_random)


def mean_of(x: Any) -> Any:
    """The mean of a random value; anything deterministic is its own mean."""
    return x.mean if is_random(x) else x


def is_random(x: Any) -> bool:
    return isinstance(x, Moments | Factored)
