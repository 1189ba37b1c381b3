"""A flat graph before it runs: no copies that nothing needs, and sums of products without a pass of their own."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from varprop.graph.captured import drop_dead_code

aten = torch.ops.aten

COPIES = {aten.clone.default, aten.alias.default, aten.detach.default}


def tidy(graph: fx.Graph) -> None:
    """Rewrite a graph of pure ops in place."""
    for node in list(graph.nodes):
        source = node.args[0] if node.args else None
        if node.target is aten.view.default:
            node.target = aten.reshape.default  # it may have relied on the strides of a copy
        elif node.target in COPIES and not node.kwargs and _is_computed(source):
            node.replace_all_uses_with(source)
    drop_dead_code(graph)
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        first, second = node.args[:2]
        if not node.kwargs and _is_own(first) and _is_own(second) and len(second.args) == 2:
            node.target, node.args = two_products, (*first.args[:2], *second.args, *first.args[2:])
    drop_dead_code(graph)


def _is_computed(node: object) -> bool:
    """Not a tensor of the caller or of the network, which a result may not be."""
    return isinstance(node, fx.Node) and node.op not in ("placeholder", "get_attr")


def _is_own(node: object) -> bool:
    """A linear layer's product that nothing else reads."""
    return isinstance(node, fx.Node) and node.target is aten.linear.default and len(node.users) == 1


def two_products(x: Tensor, weight: Tensor, y: Tensor, other: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + y Vᵀ + b; the second product is added up where the first lies."""
    first = torch.nn.functional.linear(x, weight, bias)
    if torch.compiler.is_compiling() or first.is_cpu or x.ndim < 2:
        return first + torch.nn.functional.linear(y, other)
    first.view(-1, first.shape[-1]).addmm_(y.reshape(-1, y.shape[-1]), other.t())
    return first
