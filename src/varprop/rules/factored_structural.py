"""Ops that move entries about, on factored variances: each factor goes the way of the dimensions it varies over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from varprop.moments import Factored, Moments, mean_of, multiplied_out
from varprop.rules.factorization import as_terms, broadened, joined, varies
from varprop.rules.ruleset import Op, Rule, RuleSet, rule
from varprop.rules.structural import STRUCTURAL

aten = torch.ops.aten

MOST_TERMS = 64
"""Heads of attention that get terms of their own."""


def _moving(op: Op, act: Callable[..., Any]) -> Rule:
    """``act(op, x, …)``, unless that is NotImplemented or nothing is factored: then all is multiplied out."""
    exact: Any = STRUCTURAL[op]

    @rule(op, approximation=exact.approximation, mixes=exact.mixes, factored=True)
    def move(x: Any, *args: Any, **kwargs: Any) -> Any:
        """Entries move, and the factors with them."""
        factored = [isinstance(item, Factored) for item in (x if isinstance(x, list) else [x])]
        result = act(op, x, *args, **kwargs) if any(factored) or act is _expanded else NotImplemented
        return exact(*multiplied_out((x, *args)), **kwargs) if result is NotImplemented else result

    return move


def _same(op: Op, x: Factored, *args: Any, **kwargs: Any) -> Any:
    """The identity, or a cast."""
    if op is aten.dropout.default:
        return NotImplemented if args[-1] else x
    mean = op(x.mean, *args, **kwargs)
    if mean.dtype == x.mean.dtype:
        return x._replace(mean=mean)
    cast = [None if part is None else part.to(mean.dtype) for part in x[1:]]
    return Factored(mean, *cast) if mean.is_floating_point() else mean  # type: ignore[arg-type]


def _reshaped(op: Op, x: Factored, *args: Any) -> Any:
    """What both shapes begin and end with stays; what lies between is merged and split."""
    mean = op(x.mean, *args) if op in (aten.flatten.using_ints, *UNIT) else x.mean.reshape(*args)
    old, new = ([*map(str, t.shape)] for t in (x.mean, mean))
    begin = _alike(old, new)
    end = _alike(old[begin:][::-1], new[begin:][::-1])
    inner, outer = slice(begin, len(old) - end), mean.shape[begin : len(new) - end]
    dims = range(inner.start + 1, inner.stop + 1)
    shared = any(varies(x.vectors, dim) for dim in dims)
    for dim in dims:
        if shared and varies(x.coefficients, dim):
            count = x.coefficients.shape[dim]
            if not isinstance(count, int) or count > MOST_TERMS:
                return NotImplemented
            x = _unrolled(x, dim)

    def shaped(t: Tensor, first: int) -> Tensor:
        before, after = t.shape[: inner.start + first], t.shape[inner.stop + first :]
        if any(varies(t, d + first) for d in range(inner.start, inner.stop)):
            return t.expand(*before, *x.mean.shape[inner], *after).reshape(*before, *outer, *after)
        return t.reshape(*before, *[1] * len(outer), *after)

    rest = None if x.rest is None else shaped(x.rest, 0)
    return Factored(mean, shaped(x.coefficients, 1), shaped(x.vectors, 1), rest)


def _alike(x: list[str], y: list[str]) -> int:
    return len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(x, y, strict=False))])


def _unrolled(x: Factored, dim: int) -> Factored:
    """With terms of their own for each index of ``dim``, over which the coefficients vary no more."""
    size = x.coefficients.shape[dim]
    shape = [size if d in (0, dim + 1) else 1 for d in range(x.mean.ndim + 2)]
    chosen = torch.eye(size, dtype=x.vectors.dtype, device=x.vectors.device).reshape(shape)
    coefficients = x.coefficients.movedim(dim, 0).unsqueeze(dim + 1)
    return x._replace(coefficients=coefficients.flatten(0, 1), vectors=(x.vectors * chosen).flatten(0, 1))


def _permuted(op: Op, x: Factored, *args: Any) -> Factored:
    ndim = x.mean.ndim
    order = [d % ndim for d in args[0]] if op is aten.permute.default else [*range(ndim)]
    if op is not aten.permute.default:
        first, second = args or (0, 1)
        order[first], order[second] = order[second], order[first]
    later = [0, *(d + 1 for d in order)]
    rest = None if x.rest is None else x.rest.permute(order)
    return Factored(x.mean.permute(order), x.coefficients.permute(later), x.vectors.permute(later), rest)


def _picked(op: Op, x: Factored, *args: Any) -> Any:
    """Some indices of one dimension; a factor that does not vary there is the same for all of them."""
    place = 0 if op in (aten.select.int, aten.slice.Tensor, aten.unbind.int) else 1
    dim = args[place] % x.mean.ndim if len(args) > place else 0
    found = op(x.mean, *args)
    several = isinstance(found, list | tuple)
    means = list(found) if several else [found]

    def parts(t: Tensor | None, first: int) -> list[Any]:
        if t is None:
            return [None] * len(means)
        if not varies(t, dim + first):
            return [t.squeeze(dim + first) if op in (aten.select.int, aten.unbind.int) else t] * len(means)
        picked = op(t, *args[:place], dim + first, *args[place + 1 :])
        return list(picked) if several else [picked]

    columns = means, parts(x.coefficients, 1), parts(x.vectors, 1), parts(x.rest, 0)
    results = [Factored(*column) for column in zip(*columns, strict=True)]
    return results if several else results[0]


def _expanded(_: Op, x: Any, size: Sequence[Any], **__: Any) -> Any:
    """A parameter that is repeated is a product of itself and ones."""
    mean = mean_of(x).expand(size)
    if isinstance(x, Factored):
        return as_terms(x, mean)._replace(mean=mean)
    var = broadened(x.var, mean.ndim)
    ones = var.new_ones([1, *(1 if varies(var, d) else n for d, n in enumerate(mean.shape))])
    return Factored(mean, ones, var[None])


def _concatenated(op: Op, items: Sequence[Any], dim: int = 0) -> Any:
    """The terms of all, each 0 where the others are."""
    mean = op([*map(mean_of, items)], dim)
    items = [item for item in items if mean_of(item).ndim == mean.ndim]  # others are empty, which torch lets pass
    place, sizes = dim % mean.ndim + 1, [mean_of(item).shape[dim] for item in items]
    parts = []
    for number, item in enumerate(items):
        if isinstance(item, Moments):
            return NotImplemented
        if isinstance(item, Factored):
            pair = [item.coefficients, item.vectors]
            padded = 0 if varies(pair[0], place) or not varies(pair[1], place) else 1
            if item.rest is not None or varies(pair[1 - padded], place):
                return NotImplemented
            pair[padded] = _padded(pair[padded], place, sizes, number)
            parts.append(pair)
    return Factored(mean, *(joined(column) for column in zip(*parts, strict=True)))


def _padded(t: Tensor, dim: int, sizes: Sequence[Any], number: int) -> Tensor:
    """``t`` in the place of the ``number``-th of several, zeros in that of the others."""
    shapes = [[*t.shape[:dim], size, *t.shape[dim + 1 :]] for size in sizes]
    return torch.cat([t.expand(s) if i == number else t.new_zeros(s) for i, s in enumerate(shapes)], dim)


UNIT = aten.unsqueeze.default, aten.squeeze.dim
ACTIONS: dict[Callable[..., Any], tuple[Op, ...]] = {
    _same: (
        aten.alias.default,
        aten.clone.default,
        aten.contiguous.default,
        aten.detach.default,
        aten.dropout.default,
        aten._to_copy.default,
        aten.to.dtype,
    ),
    _reshaped: (
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.flatten.using_ints,
        *UNIT,
    ),
    _permuted: (aten.permute.default, aten.transpose.int, aten.t.default),
    _picked: (
        aten.select.int,
        aten.slice.Tensor,
        aten.unbind.int,
        aten.chunk.default,
        aten.split.Tensor,
        aten.split_with_sizes.default,
    ),
    _expanded: (aten.expand.default,),
    _concatenated: (aten.cat.default,),
}

REARRANGING = RuleSet(*(_moving(op, act) for act, ops in ACTIONS.items() for op in ops), name="rearranged products")
