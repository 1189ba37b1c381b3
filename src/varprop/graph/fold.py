"""Work that depends on weights alone is done once, and its results are shared by all graphs of a network."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, fx

from varprop.graph.captured import drop_dead_code, evaluate, format_args, upstream
from varprop.graph.registry import Registries
from varprop.kernels.launch import aligned

FOLDABLE = ("mean.", "var.", "buffer.", "constant.")
SMALL = 1 << 20


def fold(graph: fx.Graph, tensors: Registries) -> None:
    """Replace every value computed from tensors alone by a tensor of ``tensors.folded``, named by what it is.

    Large views are not stored, and neither is anything much larger than what it is made of. Scales stay live: they are
    trained later.
    """
    constant, folded, values = _constants(graph), tensors.folded, _values(tensors)
    names = _names(graph, constant)
    for node in list(graph.nodes):
        if node not in constant or node.op == "get_attr" or all(user in constant for user in node.users):
            continue
        if not isinstance(node.meta["val"], Tensor):
            continue
        base: Any = node
        while _is_view(base) and base.meta["val"].numel() > SMALL:
            base = base.args[0]
        if base.op == "get_attr":
            continue
        if (name := names[base]) not in folded:
            recipe = _recipe(base)
            sources = [values[n.target].numel() for n in recipe.find_nodes(op="get_attr")]
            result = _compute(recipe, values)
            if not isinstance(result, Tensor) or result.numel() > max(SMALL, 2 * sum(sources)):
                continue
            tensors.recipes[name], folded[name] = recipe, aligned(result)[0]
        base.op, base.target, base.args, base.kwargs = "get_attr", f"folded.{name}", (), {}
        values[base.target] = folded[name]
    drop_dead_code(graph)


def refold(tensors: Registries) -> None:
    """Compute what was folded again, after the tensors it is made of have changed."""
    values = _values(tensors)
    for name, recipe in tensors.recipes.items():
        tensors.folded[name] = values[f"folded.{name}"] = aligned(_compute(recipe, values))[0]


def _values(tensors: Registries) -> dict[Any, Tensor]:
    return dict((*tensors.named_buffers(), *tensors.named_parameters()))


def _recipe(node: fx.Node) -> fx.Graph:
    """A graph of its own that computes this node."""
    recipe = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for each in upstream(node):
        copies[each] = recipe.node_copy(each, copies.__getitem__)
    recipe.output(copies[node])
    return recipe


def _compute(recipe: fx.Graph, values: dict[Any, Tensor]) -> Any:
    known: dict[fx.Node, Any] = {node: values[node.target] for node in recipe.find_nodes(op="get_attr")}
    with torch.no_grad():
        evaluate(recipe.nodes, known)
    return known[recipe.output_node().args[0]]  # type: ignore[index]


def _is_view(node: fx.Node) -> bool:
    """A cast is none, though torch counts it among them."""
    source = node.args[0] if getattr(node.target, "is_view", False) else None
    return isinstance(source, fx.Node) and bool(source.meta["val"].dtype == node.meta["val"].dtype)


def _constants(graph: fx.Graph) -> set[fx.Node]:
    """Nodes whose value is the same in every call."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            if node.target.startswith(FOLDABLE):
                found.add(node)
        elif node.op == "call_function" and all(arg in found for arg in node.all_input_nodes):
            random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if not random and _is_kept(node.meta.get("val")):
                found.add(node)
    return found


def _is_kept(value: Any) -> bool:
    """Tensors, and several small ones at a time: to store parts of large ones would be to store them twice."""
    several = isinstance(value, list | tuple) and all(isinstance(part, Tensor) for part in value)
    return isinstance(value, Tensor) or (several and all(part.numel() <= SMALL for part in value))


def _names(graph: fx.Graph, constant: set[fx.Node]) -> dict[fx.Node, str]:
    """A name for each constant that tells what it is computed from, so that graphs share equal ones."""
    names: dict[fx.Node, str] = {}
    for node in graph.nodes:
        if node in constant:
            text = (
                node.target if node.op == "get_attr" else f"{node.target}{format_args((node.args, node.kwargs), names)}"
            )
            names[node] = f"f{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return names
