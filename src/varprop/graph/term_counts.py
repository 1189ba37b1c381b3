"""How many terms factored variances have, left open: along a residual stream they become more from layer to layer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._pytree import tree_leaves, tree_map

from varprop.moments import Factored, is_random

Symbol = Any  # of sympy
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
FIRST_NAME = 1000  # of a count; sizes that capture leaves free have smaller ones


def term_groups(args: Any) -> tuple[dict[fx.Node, int], list[int]]:
    """The coefficients and vectors of factored variances, by the number of their group, and how many terms each group
    has. One of a single term is left out: it broadcasts.
    """
    groups: dict[fx.Node, int] = {}
    counts: list[int] = []
    for x in tree_leaves(args, is_leaf=is_random):
        parts: list[Any] = [x.coefficients, x.vectors] if isinstance(x, Factored) else []
        sizes = [part.meta["val"].shape[0] for part in parts]
        if parts and isinstance(sizes[0], int) and sizes[0] > 1 and sizes[0] == sizes[1]:
            number = next((groups[part] for part in parts if part in groups), len(counts))
            counts += sizes[:1] if number == len(counts) else []
            groups.update((part, number) for part in parts if part not in groups)
    return groups, counts


def layout(value: Tensor) -> str:
    """All of an outline but the number of terms: these lie first or last in memory. Empty if they do not."""
    step: Any = 1
    dims = [0, *range(value.ndim - 1, 0, -1)] if _is_inner(value) else range(value.ndim - 1, -1, -1)
    for size, stride in ((value.shape[dim], value.stride(dim)) for dim in dims):
        if str(size) != "1" and str(stride) != str(step):
            return ""
        step = step * size
    return f"terms {value.dtype} {value.device} {[*map(str, value.shape[1:])]} {_is_inner(value)}"


def with_terms(value: Tensor, count: Any) -> Tensor:
    """A tensor like this one, of as many terms."""
    outer = tuple(value.shape[1:])
    if _is_inner(value):
        return torch.empty((*outer, count), dtype=value.dtype, device=value.device).movedim(-1, 0)
    return torch.empty((count, *outer), dtype=value.dtype, device=value.device)


def _is_inner(value: Tensor) -> bool:
    return str(value.stride(0)) == "1"


def new_count(env: ShapeEnv, example: int) -> torch.SymInt:
    """A number that may be any from two."""
    taken = {*map(str, env.var_to_range)}
    name = next(name for name in map("s{}".format, itertools.count(FIRST_NAME)) if name not in taken)
    source = ConstantSource(name)
    symbol = env.create_symbol(example, source, DimDynamic.DYNAMIC)
    return env.create_symintnode(symbol, hint=example, source=source)  # type: ignore[return-value]


def forget_guards(env: ShapeEnv, first: int, counts: Iterable[Symbol]) -> bool:
    """Was anything asked of the counts, from the ``first`` guard on? It is forgotten."""
    asked = [guard for guard in env.guards[first:] if guard.expr.free_symbols & {*counts}]
    env.guards[first:] = [guard for guard in env.guards[first:] if guard not in asked]
    return bool(asked)


def closed(graph: fx.Graph, symbols: list[Symbol], counts: list[int], made: dict[Any, Tensor]) -> fx.Graph:
    """The graph for these numbers of terms. ``made`` are tensors of which there need be one of a kind."""
    new, copies = fx.Graph(), dict[fx.Node, Any]()
    numbers = dict(zip(symbols, map(sympy.Integer, counts), strict=True))
    for node in graph.nodes:
        before = node.meta.get("val")
        value = tree_map(lambda x: _closed(x, numbers, made), before)
        if isinstance(before, SYMBOLIC) and not isinstance(value, SYMBOLIC):
            copies[node] = value
        else:
            copies[node] = copy = new.node_copy(node, copies.__getitem__)
            copy.meta["val"] = value
    return new


def _closed(value: Any, numbers: dict[Symbol, Any], made: dict[Any, Tensor]) -> Any:
    if isinstance(value, SYMBOLIC):
        expr = value.node.expr.xreplace(numbers)
        return value.node.shape_env.create_symintnode(expr, hint=None) if expr.free_symbols else value.node.pytype(expr)
    if not isinstance(value, Tensor):
        return value
    sizes = *value.shape, *value.stride()
    before = [n.node.expr if isinstance(n, torch.SymInt) else n for n in sizes]
    after = [n if isinstance(n, int) else n.xreplace(numbers) for n in before]
    if after == before:
        return value
    key = value.dtype, value.device, value.ndim, *after
    if key not in made:
        shape = [_closed(n, numbers, made) for n in sizes]
        made[key] = torch.empty_strided(
            shape[: value.ndim], shape[value.ndim :], dtype=value.dtype, device=value.device
        )
    return made[key]
