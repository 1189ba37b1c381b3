"""Attention masks that mask nothing, or just the future, in every call of a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from varprop.graph.captured import Captured, arguments, evaluate, shape_of, upstream
from varprop.graph.registry import Registries

aten = torch.ops.aten

ANDS = (aten.bitwise_and.Tensor, aten.logical_and.default, aten.__and__.Tensor)
VIEWS = (aten.unsqueeze.default, aten.expand.default, aten.alias.default, aten.view.default)
ONES = (aten.ones.default, aten.new_ones.default, aten.ones_like.default)
ABOVE = {aten.ge.Scalar: 0, aten.gt.Scalar: 1}


def simplify_masks(captured: Captured, tensors: Registries) -> None:
    """Leave out masks that are all true, and say ``is_causal`` for those that are triangles.

    Those that no input, no size and no weight has a part in, but for being repeated over the batch, are looked at: what
    such a mask is, it is in every call. Of others it must follow from how they are written: a position is not negative.
    Of the caller's mask and one that is always true, the caller's is left: it is more often the same for all queries.
    """
    for node in captured.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default):
        given = arguments(node)
        if given["attn_mask"] is None or given["is_causal"]:
            continue
        mask, causal = _simplified(captured, tensors, given["attn_mask"])
        node.args = (*node.args[:3], mask, given["dropout_p"], causal)
        node.kwargs = {name: node.kwargs[name] for name in ("scale", "enable_gqa") if name in node.kwargs}


def _simplified(captured: Captured, tensors: Registries, mask: Any) -> tuple[fx.Node | None, bool]:
    """What is left of a mask, and whether it was one that hides the future."""
    value, sizes = _value(captured, tensors, mask), mask.meta["val"].shape[-2:]
    if value is None:
        left = [part for part in _parts(mask) if not _is_true(part)]
        if len(left) > 1:
            return mask, False
        causal = bool(left) and _hides_the_future(left[0], sizes)
        return None if causal or not left else left[0], causal
    if not bool((~value if value.dtype == torch.bool else value != 0).any()):
        return None, False
    causal = value.dtype == torch.bool and _is_triangle(value, sizes)
    return None if causal else mask, causal


def _value(captured: Captured, tensors: Registries, mask: fx.Node) -> Tensor | None:
    """The mask before it is repeated; None if it is not the same in every call."""
    while mask.target is aten.expand.default:
        mask = mask.args[0]  # type: ignore[assignment]
    nodes = upstream(mask)
    values: dict[fx.Node, Any] = {}
    for node in nodes:
        if node.op == "placeholder":
            kind, path = captured.tensors.get(node, ("input", ""))
            if kind != "constant":
                return None
            values[node] = tensors.constant[path]
    with torch.no_grad():
        evaluate(nodes, values)
    value = values[mask]
    return None if value.is_meta else value


def _is_triangle(mask: Tensor, sizes: Any) -> bool:
    """Does each token see itself and those before it, and as many as there are keys?"""
    if tuple(mask.shape[-2:]) != tuple(sizes) or sizes[0] != sizes[1]:
        return False
    return bool((mask == torch.ones_like(mask).tril()).all())


# --- masks as they are written ---------------------------------------------------------------------------


def _parts(mask: Any) -> list[Any]:
    """What all must hold for it to be true, each repeated as need be."""
    while mask.target is aten.expand.default:
        mask = mask.args[0]
    return [part for x in mask.args for part in _parts(x)] if mask.target in ANDS else [mask]


def _is_true(mask: Any) -> bool:
    while mask.target in VIEWS:
        mask = mask.args[0]
    if mask.target in ONES:
        return bool(mask.meta["val"].dtype == torch.bool)
    start = _start(mask.args[0]) if mask.target in ABOVE else None
    return start is not None and start >= mask.args[1] + ABOVE[mask.target]


def _hides_the_future(mask: Any, sizes: Any) -> bool:
    """Is it "a key's position is not above the query's", with as many of one as of the other?"""
    if mask.target not in (aten.le.Tensor, aten.ge.Tensor):
        return False
    keys, queries = mask.args if mask.target is aten.le.Tensor else mask.args[::-1]
    if not all(isinstance(x, fx.Node) and _start(x) == 0 for x in (keys, queries)):
        return False
    length, count = map(str, sizes)
    shapes = [shape_of(keys), shape_of(queries)]
    apart = [shape[:-2].count("1") == len(shape) - 2 and shape[-2:] for shape in shapes]
    return length == count and apart == [["1", length], [length, "1"]]


def _start(positions: Any) -> int | None:
    """The first of numbers that count upwards along one dimension; None if they are not seen to do that."""
    added = 0
    while positions.target in (*VIEWS, aten.add.Tensor, aten.add.Scalar):
        if positions.target not in VIEWS:
            number = positions.args[1]
            if not isinstance(number, int) or positions.kwargs:
                return None
            added += number
        positions = positions.args[0]
    first = {aten.arange.default: 0, aten.arange.start: positions.args[0]}.get(positions.target)
    return first + added if isinstance(first, int) else None
