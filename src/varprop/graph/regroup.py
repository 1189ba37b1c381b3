"""Written-out functions become the one function they are.

``x·σ(1.702x)`` is not a product of independent variables, and ``x / √(mean x² + ε)`` is a norm: rules
act on the whole, so graphs are rewritten before lifting. Only parts that variance can reach matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from varprop.graph.canonicalize import canonicalize
from varprop.graph.captured import Captured, is_plain, reachable, see_through, shape_of
from varprop.graph.chains import regroup_chains
from varprop.rules import functions

aten = torch.ops.aten


def regroup(captured: Captured, random: Iterable[fx.Node]) -> None:
    """Rewrite ``captured`` in place; ``random`` are the placeholders that carry variance."""
    reached = reachable(captured.graph, random)
    canonicalize(captured, reached)
    for node in captured.ops():
        if node in reached and (norm := _match_norm(node)):
            captured.replace(node, *norm)
    for node in captured.ops():
        if node in reached and (layer := _match_residual(node, reached)):
            captured.replace(node, functions.residual_linear, layer.args)
    regroup_chains(captured, reachable(captured.graph, random))
    captured.drop_dead_code()


def _match_residual(node: fx.Node, reached: set[fx.Node]) -> fx.Node | None:
    """The linear layer in a residual around it: x + (W x + b)."""
    if not is_plain(node, aten.add.Tensor):
        return None
    for x, branch in (node.args[:2], node.args[1::-1]):
        inner = see_through(branch)
        if (
            isinstance(inner, fx.Node)
            and inner.target is aten.linear.default
            and inner.args[0] is x
            and x in reached
            and shape_of(inner) == shape_of(x)  # type: ignore[arg-type]  # else one of them is broadcast
        ):
            return inner
    return None


# --- norms ---------------------------------------------------------------------------------------


def _match_norm(node: fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
    """The norm that x · rsqrt(…) or x / sqrt(…) is, casts between ignored, and its arguments."""
    if node.target not in (aten.mul.Tensor, aten.div.Tensor):
        return None
    a, b = node.args
    if node.target is aten.mul.Tensor:
        root, candidates = aten.rsqrt.default, [(a, b, 0.0, 0.0), (b, a, 0.0, 0.0)]
    else:
        root, candidates = aten.sqrt.default, [(a, *_bounded(b))]
    for x, length, outside, least in candidates:
        found = _match_length(see_through(length), x, root) if isinstance(x, fx.Node) else None
        if found is None:
            continue
        reduction, *args = found
        if reduction is aten.sum.dim_IntList:
            return functions.unit_length, (x, *args, outside, least)
        if not (outside or least):
            centred = _match_centred(x, args[0])
            if centred is not None:
                return functions.standardize, (centred, *args)
            return functions.rms_normalize, (x, *args)
    return None


def _bounded(divisor: Any) -> tuple[Any, float, float]:
    """The length that x is divided by, a number that is added to it, and one that bounds it from below."""
    divisor = see_through(divisor)
    if _is_op(divisor, aten.expand.default):
        divisor = see_through(divisor.args[0])
    if isinstance(divisor, fx.Node) and len(divisor.args) == 2 and isinstance(number := divisor.args[1], int | float):
        if divisor.target in (aten.clamp_min.default, aten.clamp.default):
            return divisor.args[0], 0.0, float(number)
        if divisor.target is aten.add.Tensor:
            return divisor.args[0], float(number), 0.0
    return divisor, 0.0, 0.0


def _match_length(length: Any, x: fx.Node, root: Any) -> tuple[Any, tuple[int, ...], Any] | None:
    """If it is a root of the sum or the mean of x²: which of the two, over which dims, and what is added to that."""
    if _is_op(length, aten.linalg_vector_norm.default) and root is aten.sqrt.default:
        order, dims, keeps = (list(length.args[1:4]) + [2, None, False][len(length.args) - 1 :])[:3]
        same = see_through(length.args[0]) is see_through(x) and order == 2 and keeps and not length.kwargs
        return (aten.sum.dim_IntList, tuple(dims), 0.0) if same and dims else None
    inner = see_through(length.args[0]) if _is_op(length, root) else None
    if not isinstance(inner, fx.Node):
        return None
    terms: Any = [inner.args[:2], inner.args[1::-1]] if is_plain(inner, aten.add.Tensor) else [(inner, 0.0)]
    for statistic, eps in terms:
        reduction, dims = _match_squares(see_through(statistic), x)
        if dims:
            return reduction, dims, eps
    return None


def _match_squares(node: Any, x: fx.Node) -> tuple[Any, tuple[int, ...]]:
    """If it is the mean or the sum of x²: which, and over which dims, kept as sizes of 1; no dims if it is neither."""
    if _is_op(node, aten.mean.dim) or _is_op(node, aten.sum.dim_IntList):
        return node.target, tuple(node.args[1] or ()) if _keepdim(node, 2) and _is_square_of(node.args[0], x) else ()
    if _is_op(node, aten.var.dim):
        by_n, keeps = len(node.args) > 2 and not node.args[2], _keepdim(node, 3)
    elif _is_op(node, aten.var.correction):
        by_n, keeps = node.kwargs.get("correction") == 0, node.kwargs.get("keepdim", False)
    else:
        return None, ()
    dims = tuple(node.args[1]) if by_n and keeps else ()
    centred = _match_centred(x, dims)
    return aten.mean.dim, dims if centred is not None and see_through(centred) is see_through(node.args[0]) else ()


def _is_square_of(value: Any, x: fx.Node) -> bool:
    square = see_through(value)
    same = lambda value: see_through(value) is see_through(x)  # noqa: E731
    return isinstance(square, fx.Node) and (
        (square.target is aten.pow.Tensor_Scalar and square.args[1] == 2 and same(square.args[0]))
        or (square.target is aten.mul.Tensor and same(square.args[0]) and same(square.args[1]))
        or (square.target is aten.square.default and same(square.args[0]))
    )


def _match_centred(x: Any, dims: tuple[int, ...]) -> Any:
    """The x of ``x − mean(x)`` over the same dims."""
    sub = see_through(x)
    if not isinstance(sub, fx.Node) or not is_plain(sub, aten.sub.Tensor):
        return None
    mean = see_through(sub.args[1])
    if not _is_op(mean, aten.mean.dim) or not _keepdim(mean, 2):
        return None
    same = tuple(mean.args[1] or ()) == dims and see_through(mean.args[0]) is see_through(sub.args[0])
    return sub.args[0] if same else None


def _is_op(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is target


def _keepdim(node: fx.Node, position: int) -> bool:
    return bool(node.args[position] if len(node.args) > position else node.kwargs.get("keepdim", False))
