"""Sums, means and products: along dims, of entries that are scattered, of bags of embeddings."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of
from varprop.rules.arithmetic import as_moments, multiply
from varprop.rules.normal import cast
from varprop.rules.ruleset import RuleSet, rule
from varprop.rules.structural import structural

aten = torch.ops.aten


def dims_of(ndim: int, dim: Any) -> list[int]:
    """The dims an op reduces, last first: no dim at all means all of them."""
    dims = [dim] if isinstance(dim, int) else dim or range(ndim)
    return sorted((d % ndim for d in dims), reverse=True)


SUMS = structural(
    *(aten.sum.default, aten.sum.dim_IntList, aten.cumsum.default, aten.scatter_add.default, aten.col2im.default),
    mixes=True,
)
"""Variances add as means do."""


@rule(aten.mean.default, aten.mean.dim, approximation=None, mixes=True, takes_complex=True)
def average(x: Moments, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Moments:
    """(1/n) Σ_i x_i: Σ = (1/n²) Σ_i v_i. Exact."""
    mean, var = (part.mean(dim, keepdim, dtype=dtype) for part in x)
    return Moments(mean, var / math.prod(x.mean.shape[d] for d in dims_of(x.mean.ndim, dim)))


@rule(aten.prod.default, aten.prod.dim_int, approximation=None, mixes=True)
def product(x: Moments, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Moments:
    """Π_i x_i, one factor after the other. Exact."""
    x = Moments(*(part.flatten() if dim is None else part for part in cast(x, dtype)))
    y = functools.reduce(multiply, map(Moments, *(part.unbind(dim or 0) for part in x)))
    return Moments(*(part.unsqueeze(dim or 0) for part in y)) if keepdim else y


@rule(aten.cumprod.default, approximation=None, mixes=True)
def cumulate_product(x: Moments, dim: int, *, dtype: torch.dtype | None = None) -> Moments:
    """Running products, one factor after the other. Exact."""
    factors = map(Moments, *(part.unbind(dim) for part in cast(x, dtype)))
    return Moments(*(torch.stack(parts, dim) for parts in zip(*itertools.accumulate(factors, multiply), strict=True)))


@rule(aten.diff.default, approximation=None, mixes=True)
def difference(x: Moments, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """x_{i+1} − x_i: variances add. Exact."""
    if n != 1 or prepend is not None or append is not None:
        return NotImplemented
    size = x.mean.shape[dim] - 1
    return Moments(x.mean.diff(dim=dim), x.var.narrow(dim, 1, size) + x.var.narrow(dim, 0, size))


@rule(aten.index_add.default, approximation=None, mixes=True)
def index_add(x: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1) -> Moments:
    """x with α·source added at places: variances add. Exact."""
    x, source = as_moments(x), as_moments(source)
    return Moments(
        x.mean.index_add(dim, index, source.mean, alpha=alpha),
        x.var.index_add(dim, index, source.var, alpha=alpha * alpha),
    )


DECIDED_LARGEST = "which is largest is decided at the mean"


def _neglected(*args: Any, **_: Any) -> str | None:
    return DECIDED_LARGEST if args[4] in ("amax", "amin") else None


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
    padding_idx: int | None = None,
) -> Any:
    """Sums or means of rows: Σ = C² v, C_bi how often, or how much, row i counts in bag b. Exact."""
    if mode == 2 or is_random(per_sample_weights):
        return NotImplemented
    options = (by_frequency, mode, sparse, per_sample_weights, include_last_offset)
    mean, *_ = aten.embedding_bag.padding_idx(weight.mean, indices, offsets, *options, padding_idx)
    places = torch.arange(indices.shape[0], device=indices.device)
    bags = torch.searchsorted(offsets.contiguous(), places.to(offsets.dtype), right=True) - 1
    one = (
        torch.ones_like(indices, dtype=weight.var.dtype) if per_sample_weights is None else mean_of(per_sample_weights)
    )
    if padding_idx is not None:
        one = one * (indices != padding_idx % weight.var.shape[0])
    counts = weight.var.new_zeros(mean.shape[0], weight.var.shape[0])
    counts = counts.index_put((bags, indices), one, accumulate=True)
    if mode == 1:
        counts = counts / counts.sum(1, keepdim=True).clamp(min=1)
    return Moments(mean, counts.square() @ weight.var), None, None, None


REDUCTION = RuleSet(
    *(SUMS, average, product, cumulate_product, difference),
    *(index_add, scatter_reduce, index_reduce, embedding_bag),
    name="reduction",
)
