"""Fewer products: linear layers of one input, the projections of an attention block, and sums of convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from varprop.graph.captured import shape_of, write_op
from varprop.graph.fold import FOLDABLE

aten = torch.ops.aten

CONVOLUTIONS = (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
SPLITS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def merge_products(graph: fx.Graph) -> None:
    """In place, before constants are folded."""
    _eliminate_common(graph, aten.mul.Tensor, aten.square.default)
    _merge_layers(graph)
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        _join_convolutions(graph, node)
    _eliminate_common(graph, aten.cat.default)


def _eliminate_common(graph: fx.Graph, *targets: Any) -> None:
    """Two layers that read one tensor square it twice."""
    seen: dict[str, fx.Node] = {}
    for node in [node for target in targets for node in graph.find_nodes(op="call_function", target=target)]:
        first = seen.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _join_convolutions(graph: fx.Graph, total: fx.Node) -> None:
    """Σ ∗ E[W²] + μ² ∗ Σ_W = [Σ, μ²] ∗ [E[W²], Σ_W], which writes one result in the place of two that are added."""
    pair: list[Any] = [*total.args[:2]]
    if total.kwargs or not all(isinstance(x, fx.Node) and x.target in CONVOLUTIONS and len(x.users) == 1 for x in pair):
        return
    inputs, weights, biases, settings = zip(*(_convolved(x) for x in pair), strict=True)
    added = [bias for bias in biases if bias is not None]
    sizes = [[*map(shape_of, same)] for same in (inputs, weights)]
    if len(added) > 1 or settings[0] != settings[1] or any(first != second for first, second in sizes):
        return
    if sizes[0][0][1] != sizes[1][0][1]:  # of several groups
        return
    with graph.inserting_before(total):
        joint = [write_op(graph, aten.cat.default, list(same), 1) for same in (inputs, weights)]
        target, rest, total.kwargs = settings[0]
        total.target, total.args = target, (*joint, *(added or [None]), *rest)
    for node in pair:
        graph.erase_node(node)


def _convolved(node: fx.Node) -> tuple[Any, Any, Any, Any]:
    """Input, weight, bias, and all else."""
    x, weight, *rest = node.args
    return x, weight, rest[0] if rest else None, (node.target, rest[1:], node.kwargs)


def _merge_layers(graph: fx.Graph) -> None:
    """At one product for three, a GPU waits less between them.

    Each result is a slice of what comes out. Only where all that reads it takes it apart into heads is that no copy.
    """
    groups: dict[Any, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=aten.linear.default):
        if _is_split_into_heads(node) and all(_is_weight(x) for x in node.args[1:]):
            groups.setdefault((node.args[0], len(node.args), node.meta["val"].dtype), []).append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            _merge(graph, nodes)


def _is_weight(x: Any) -> bool:
    return isinstance(x, fx.Node) and x.op == "get_attr" and str(x.target).startswith(FOLDABLE)


def _is_split_into_heads(product: fx.Node) -> bool:
    outer = shape_of(product)[:-1]
    return not product.kwargs and all(
        user.target in SPLITS and shape_of(user)[: len(outer)] == outer for user in product.users
    )


def _merge(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    first = nodes[0]
    widths = [node.meta["val"].shape[-1] for node in nodes]
    with graph.inserting_before(first):
        stacks = [
            write_op(graph, aten.cat.default, [graph.node_copy(x) for x in same])
            for same in zip(*(node.args[1:] for node in nodes), strict=True)
        ]
        product, start = write_op(graph, aten.linear.default, first.args[0], *stacks), 0
        for node, width in zip(nodes, widths, strict=True):
            last = node.meta["val"].ndim - 1
            node.replace_all_uses_with(write_op(graph, aten.slice.Tensor, product, last, start, start + width))
            start += width
    for node in nodes:
        graph.erase_node(node)
