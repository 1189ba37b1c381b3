"""Sorting and its like: entries move to where the means say."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments
from varprop.rules.ruleset import RuleSet, rule

aten = torch.ops.aten

DECIDED_ORDER = "the order is decided at the mean; exact while no two entries change places"


def _picked(x: Moments, values: Tensor, indices: Tensor, dim: int) -> tuple[Moments, Tensor]:
    """The values with the variances of the entries they are."""
    if values.ndim < x.mean.ndim:
        return Moments(values, x.var.gather(dim, indices.unsqueeze(dim)).squeeze(dim)), indices
    return Moments(values, x.var.gather(dim, indices)), indices


@rule(aten.sort.default, approximation=DECIDED_ORDER, mixes=True)
def sort(x: Moments, dim: int = -1, descending: bool = False) -> tuple[Moments, Tensor]:
    """Entries in the order of their means."""
    return _picked(x, *x.mean.sort(dim, descending), dim)


@rule(aten.sort.stable, approximation=DECIDED_ORDER, mixes=True)
def stable_sort(
    x: Moments, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Moments, Tensor]:
    """Entries in the order of their means."""
    values, indices = aten.sort.stable(x.mean, stable=stable, dim=dim, descending=descending)
    return _picked(x, values, indices, dim)


@rule(aten.topk.default, approximation=DECIDED_ORDER, mixes=True)
def topk(x: Moments, k: int, dim: int = -1, *args: Any) -> tuple[Moments, Tensor]:
    """The k entries of the largest, or smallest, means."""
    return _picked(x, *x.mean.topk(k, dim, *args), dim)


@rule(aten.median.dim, approximation=DECIDED_ORDER, mixes=True)
def median(x: Moments, dim: int, keepdim: bool = False) -> tuple[Moments, Tensor]:
    """The entry of the median mean."""
    return _picked(x, *x.mean.median(dim, keepdim), dim)


@rule(aten.median.default, approximation=DECIDED_ORDER, mixes=True)
def overall_median(x: Moments) -> Moments:
    """The entry of the median mean."""
    return median(Moments(*(part.flatten() for part in x)), 0)[0]


@rule(aten.kthvalue.default, approximation=DECIDED_ORDER, mixes=True)
def kth_value(x: Moments, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Moments, Tensor]:
    """The entry of the k-th smallest mean."""
    return _picked(x, *x.mean.kthvalue(k, dim, keepdim), dim)


ORDER = RuleSet(sort, stable_sort, topk, median, overall_median, kth_value, name="order")
