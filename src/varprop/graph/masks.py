"""Attention masks that mask nothing, or just the future, in every call of a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from varprop.graph.captured import Captured, drop_dead_code, evaluate, upstream
from varprop.graph.registry import Registries

aten = torch.ops.aten


def settle_masks(captured: Captured, tensors: Registries) -> None:
    """Leave out masks that are all true, and say ``is_causal`` for those that are triangles.

    Only of masks that no input, no size and no weight has a part in, but for being repeated over the batch: what such a
    mask is, it is in every call. One that the caller gives, or that depends on a length, stays.
    """
    for node in captured.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default):
        args = [*node.args, *(None, 0.0, False)[len(node.args) - 3 :]]
        if args[3] is None or args[5] or "attn_mask" in node.kwargs or "is_causal" in node.kwargs:
            continue
        mask = _value(captured, tensors, args[3])
        if mask is None:
            continue
        hides = ~mask if mask.dtype == torch.bool else mask != 0
        if not bool(hides.any()):
            node.args = (*args[:3], None, *args[4:])
        elif mask.dtype == torch.bool and _is_triangle(mask, args[3].meta["val"].shape[-2:]):
            node.args = (*args[:3], None, args[4], True)
    drop_dead_code(captured.graph)


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
