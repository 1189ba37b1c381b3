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
from varprop.graph.captured import Captured, arguments, is_plain, reachable, see_through, shape_of
from varprop.graph.chains import regroup_chains
from varprop.rules import functions

aten = torch.ops.aten

MEANS_AND_SUMS = {aten.mean.dim, aten.sum.dim_IntList}
REDUCTIONS = MEANS_AND_SUMS | {aten.var.dim, aten.var.correction, aten.linalg_vector_norm.default}


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
        if is_plain(divisor, aten.add.Tensor):
            return divisor.args[0], float(number), 0.0
    return divisor, 0.0, 0.0


def _match_length(length: Any, x: fx.Node, root: Any) -> tuple[Any, tuple[int, ...], Any] | None:
    """If it is a root of the sum or the mean of x²: which of the two, over which dims, and what is added to that."""
    if _is_op(length, aten.linalg_vector_norm.default) and root is aten.sqrt.default:
        given = arguments(length)
        same = given["ord"] == 2 and given["dtype"] is None and see_through(given["self"]) is see_through(x)
        return (aten.sum.dim_IntList, dims, 0.0) if same and (dims := _kept_dims(length)) else None
    inner = see_through(length.args[0]) if _is_op(length, root) else None
    if not isinstance(inner, fx.Node):
        return None
    terms: Any = [inner.args[:2], inner.args[1::-1]] if is_plain(inner, aten.add.Tensor) else [(inner, 0.0)]
    for statistic, eps in terms:
        reduction = _match_squares(see_through(statistic), x)
        if reduction is not None:
            return reduction, _kept_dims(see_through(statistic)), eps
    return None


def _match_squares(node: Any, x: fx.Node) -> Any:
    """``mean.dim`` or ``sum.dim_IntList`` if it is that of x², over dims that are kept as sizes of 1."""
    dims, given = _kept_dims(node), arguments(node)
    if not dims:
        return None
    if node.target in MEANS_AND_SUMS:
        return node.target if _is_square_of(given["self"], x) else None
    if given.get("unbiased", given.get("correction")) != 0:
        return None
    centred = _match_centred(x, dims)
    return aten.mean.dim if centred is not None and see_through(centred) is see_through(given["self"]) else None


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
    same = _is_op(mean, aten.mean.dim) and _kept_dims(mean) == dims
    return sub.args[0] if same and see_through(mean.args[0]) is see_through(sub.args[0]) else None


def _is_op(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is target


def _kept_dims(node: Any) -> tuple[int, ...]:
    """The dims that a reduction is over, if it is one and keeps them as sizes of 1."""
    given = arguments(node) if isinstance(node, fx.Node) and node.target in REDUCTIONS else {}
    return tuple(given["dim"] or ()) if given.get("keepdim") else ()
