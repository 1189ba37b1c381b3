"""Linear layers of one input as one product: the projections of an attention block."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from varprop.graph.fold import FOLDABLE

aten = torch.ops.aten

SPLITS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def merge_products(graph: fx.Graph) -> None:
    """In place, before constants are folded: at one product for three, a GPU waits less between them.

    Each result is a slice of what comes out. Only where all that reads it takes it apart into heads is that no copy.
    """
    groups: dict[Any, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=aten.linear.default):
        if _is_taken_apart(node) and all(_is_weight(x) for x in node.args[1:]):
            groups.setdefault((node.args[0], len(node.args), node.meta["val"].dtype), []).append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            _merge(graph, nodes)


def _is_weight(x: Any) -> bool:
    return isinstance(x, fx.Node) and x.op == "get_attr" and str(x.target).startswith(FOLDABLE)


def _is_taken_apart(product: fx.Node) -> bool:
    outer = [*map(str, product.meta["val"].shape[:-1])]
    return not product.kwargs and all(
        user.target in SPLITS and [*map(str, user.meta["val"].shape[: len(outer)])] == outer for user in product.users
    )


def _merge(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    first = nodes[0]
    widths = [node.meta["val"].shape[-1] for node in nodes]
    with graph.inserting_before(first):
        stacks = []
        for same in zip(*(node.args[1:] for node in nodes), strict=True):
            stacks.append(graph.call_function(aten.cat.default, ([graph.node_copy(x) for x in same],)))
            like = same[0].meta["val"]
            stacks[-1].meta["val"] = like.new_empty((sum(widths), *like.shape[1:]))
        product = graph.call_function(aten.linear.default, (first.args[0], *stacks))
        like, start = first.meta["val"], 0
        product.meta["val"] = like.new_empty((*like.shape[:-1], sum(widths)))
        for node, width in zip(nodes, widths, strict=True):
            part = graph.call_function(aten.slice.Tensor, (product, like.ndim - 1, start, start + width))
            part.meta = dict(node.meta)
            node.replace_all_uses_with(part)
            start += width
    for node in nodes:
        graph.erase_node(node)
