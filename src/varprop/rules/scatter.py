"""Entries gathered into sums and means: graph networks, bags of embeddings, overlapping patches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of
from varprop.rules.arithmetic import as_moments
from varprop.rules.order import DECIDED_ORDER
from varprop.rules.ruleset import RuleSet, rule
from varprop.rules.structural import structural

aten = torch.ops.aten


@rule(aten.index_add.default, approximation=None, mixes=True)
def index_add(x: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1) -> Moments:
    """x with α·source added at places: variances add. Exact."""
    x, source = as_moments(x), as_moments(source)
    return Moments(
        x.mean.index_add(dim, index, source.mean, alpha=alpha),
        x.var.index_add(dim, index, source.var, alpha=alpha * alpha),
    )


def _neglected(*args: Any, **_: Any) -> str | None:
    return DECIDED_ORDER if args[4] in ("amax", "amin") else None


@rule(aten.scatter_reduce.two, approximation=_neglected, mixes=True)
def scatter_reduce(x: Any, dim: int, index: Tensor, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """Sums or means of n entries each: Σ = Σ v, or (1/n²) Σ v, exact. Of the largest or smallest, its own v."""
    if reduce == "prod":
        return NotImplemented
    x, source = as_moments(x), as_moments(source)

    def gather(x: Tensor, source: Tensor, how: str = "sum") -> Tensor:
        return x.scatter_reduce(dim, index, source, how, include_self=include_self)

    mean = gather(x.mean, source.mean, reduce)
    if reduce in ("amax", "amin"):
        wins = source.mean == mean.gather(dim, index)
        own = torch.where(x.mean == mean, x.var, 0.0)
        return Moments(mean, own.scatter_reduce(dim, index, torch.where(wins, source.var, 0.0), "amax"))
    var = gather(x.var, source.var)
    if reduce == "mean":
        var = var / gather(torch.ones_like(x.var), torch.ones_like(source.var)).square()
    return Moments(mean, var)


@rule(aten.index_reduce.default, approximation=_neglected, mixes=True)
def index_reduce(x: Any, dim: int, index: Tensor, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """``scatter_reduce`` of whole slices."""
    shape = mean_of(source).shape
    places = index.reshape([-1 if d == dim % len(shape) else 1 for d in range(len(shape))]).expand(shape)
    return scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


@rule(aten.embedding_bag.padding_idx, aten.embedding_bag.default, approximation=None, mixes=True)
def embedding_bag(
    weight: Any,
    indices: Tensor,
    offsets: Tensor,
    by_frequency: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> Any:
    """Sums or means of rows: Σ = C² v, C_bi how often, or how much, row i counts in bag b. Exact."""
    if mode == 2 or is_random(per_sample_weights):
        return NotImplemented
    options = (by_frequency, mode, sparse, per_sample_weights, include_last_offset)
    mean = aten.embedding_bag.default(weight.mean, indices, offsets, *options)
    if padding_idx is not None and padding_idx != -1:
        mean = aten.embedding_bag.padding_idx(weight.mean, indices, offsets, *options, padding_idx)
    places = torch.arange(indices.shape[0], device=indices.device)
    bags = torch.searchsorted(offsets.contiguous(), places.to(offsets.dtype), right=True) - 1
    one = (
        torch.ones_like(indices, dtype=weight.var.dtype) if per_sample_weights is None else mean_of(per_sample_weights)
    )
    if padding_idx is not None and padding_idx != -1:
        one = one * (indices != padding_idx)
    counts = weight.var.new_zeros(mean[0].shape[0], weight.var.shape[0])
    counts = counts.index_put((bags, indices), one, accumulate=True)
    if mode == 1:
        counts = counts / counts.sum(1, keepdim=True).clamp(min=1)
    return Moments(mean[0], counts.square() @ weight.var), None, None, None


SCATTER = RuleSet(
    structural(aten.scatter_add.default, aten.col2im.default, mixes=True),
    index_add,
    scatter_reduce,
    index_reduce,
    embedding_bag,
    name="scatter",
)
