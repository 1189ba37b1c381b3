"""Norms that models write out, as the one function they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from varprop.graph.captured import Captured
from varprop.graph.rewriting import is_plain, replace, see_through
from varprop.rules import functions

aten = torch.ops.aten


def regroup_norms(captured: Captured, reached: set[fx.Node]) -> None:
    for node in captured.ops():
        if node not in reached:
            continue
        if unit := _match_unit_length(node):
            replace(captured, node, functions.unit_length, unit)
            continue
        found = _match_rms(node)
        if found is None:
            continue
        x, dims, eps = found
        centred = _match_centred(x, dims)
        target, source = (functions.standardize, centred) if centred is not None else (functions.rms_normalize, x)
        replace(captured, node, target, (source, tuple(dims), eps))


def _match_rms(node: fx.Node) -> tuple[fx.Node, list[int], Any] | None:
    """x · rsqrt(mean(x²) + ε)  or  x / sqrt(mean(x²) + ε), in either order, casts between ignored."""
    pairs: list[tuple[Any, Any]] = []
    if node.target is aten.mul.Tensor:
        pairs = [(node.args[0], node.args[1]), (node.args[1], node.args[0])]
    elif node.target is aten.div.Tensor:
        pairs = [(node.args[0], node.args[1])]
    root = aten.sqrt.default if node.target is aten.div.Tensor else aten.rsqrt.default
    for x, factor in pairs:
        inner = _argument(factor, root)
        if inner is None or not is_plain(inner, aten.add.Tensor) or not isinstance(x, fx.Node):
            continue
        for statistic, eps in (inner.args[:2], inner.args[1::-1]):
            dims = _mean_square_dims(statistic, x)
            if dims is not None:
                return x, dims, eps
    return None


def _mean_square_dims(statistic: Any, x: fx.Node) -> list[int] | None:
    """The dims over which ``statistic`` is the mean square of ``x``, if it is that."""
    node = see_through(statistic)
    if not isinstance(node, fx.Node):
        return None
    if node.target in (aten.var.dim, aten.var.correction):
        dims = _population_variance_dims(node)
        centred = _match_centred(x, dims) if dims is not None else None
        return dims if centred is not None and see_through(centred) is see_through(node.args[0]) else None
    if node.target is not aten.mean.dim or not _keepdim(node, 2):
        return None
    return list(node.args[1]) if _is_square_of(node.args[0], x) else None  # type: ignore[arg-type]


def _is_square_of(value: Any, x: fx.Node) -> bool:
    square = see_through(value)
    same = lambda value: see_through(value) is see_through(x)  # noqa: E731
    return isinstance(square, fx.Node) and (
        (square.target is aten.pow.Tensor_Scalar and square.args[1] == 2 and same(square.args[0]))
        or (square.target is aten.mul.Tensor and same(square.args[0]) and same(square.args[1]))
        or (square.target is aten.square.default and same(square.args[0]))
    )


def _match_unit_length(node: fx.Node) -> tuple[Any, ...] | None:
    """The arguments of ``unit_length`` if it is x/‖x‖, with an ε inside the root, beside it, or as a lower bound."""
    if node.target is not aten.div.Tensor or not isinstance(x := node.args[0], fx.Node):
        return None
    divisor, outside, least = see_through(node.args[1]), 0.0, 0.0
    if isinstance(divisor, fx.Node) and divisor.target is aten.expand.default:
        divisor = see_through(divisor.args[0])
    if isinstance(divisor, fx.Node) and len(divisor.args) == 2 and isinstance(number := divisor.args[1], int | float):
        if divisor.target in (aten.clamp_min.default, aten.clamp.default):
            divisor, least = see_through(divisor.args[0]), float(number)
        elif divisor.target is aten.add.Tensor:
            divisor, outside = see_through(divisor.args[0]), float(number)
    found = _length_dims(divisor, x)
    return None if found is None else (x, found[0], found[1], outside, least)


def _length_dims(length: Any, x: fx.Node) -> tuple[tuple[int, ...], Any] | None:
    """The dims over which ``length`` is the norm of ``x``, kept as sizes of 1, and what is added inside the root."""
    if not isinstance(length, fx.Node):
        return None
    if length.target is aten.linalg_vector_norm.default and see_through(length.args[0]) is see_through(x):
        order, dims, keeps = (list(length.args[1:4]) + [2, None, False][len(length.args) - 1 :])[:3]
        return (tuple(dims), 0.0) if order == 2 and dims and keeps and not length.kwargs else None  # type: ignore[arg-type]
    square, inside = _argument(length, aten.sqrt.default), 0.0
    if square is not None and is_plain(square, aten.add.Tensor):
        square, inside = see_through(square.args[0]), square.args[1]
    if not isinstance(square, fx.Node) or square.target is not aten.sum.dim_IntList or not _keepdim(square, 2):
        return None
    return (tuple(square.args[1]), inside) if _is_square_of(square.args[0], x) else None  # type: ignore[arg-type]


def _population_variance_dims(node: fx.Node) -> list[int] | None:
    """The dims of a variance that divides by n and keeps them."""
    if node.target is aten.var.dim:
        divides_by_n = bool(len(node.args) > 2 and not node.args[2])
        keeps = _keepdim(node, 3)
    else:
        divides_by_n = bool(node.kwargs.get("correction") == 0)
        keeps = bool(node.kwargs.get("keepdim", False))
    return list(node.args[1]) if divides_by_n and keeps else None  # type: ignore[arg-type]


def _match_centred(x: fx.Node, dims: list[int]) -> Any:
    """The x of ``x − mean(x)`` over the same dims."""
    sub = see_through(x)
    if not isinstance(sub, fx.Node) or not is_plain(sub, aten.sub.Tensor):
        return None
    mean = see_through(sub.args[1])
    if not isinstance(mean, fx.Node) or mean.target is not aten.mean.dim or not _keepdim(mean, 2):
        return None
    same = list(mean.args[1]) == dims and see_through(mean.args[0]) is see_through(sub.args[0])  # type: ignore[arg-type]
    return sub.args[0] if same else None


def _keepdim(node: fx.Node, position: int) -> bool:
    return bool(node.args[position] if len(node.args) > position else node.kwargs.get("keepdim", False))


def _argument(node: Any, target: Any) -> fx.Node | None:
    node = see_through(node)
    inner = see_through(node.args[0]) if isinstance(node, fx.Node) and node.target is target else None
    return inner if isinstance(inner, fx.Node) else None
