"""Work that depends on weights alone is done once, and its results are shared by all graphs of a network."""

from __future__ import annotations

import hashlib
from collections.abc import Container
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
    constant, bases = _constants(graph), dict[fx.Node, str]()
    names = _names(graph, constant)
    for node in graph.nodes:
        if node not in constant or node.op == "get_attr" or all(user in constant for user in node.users):
            continue
        if not isinstance(node.meta["val"], Tensor):
            continue
        base: Any = node
        while _is_view(base) and base.meta["val"].numel() > SMALL:
            base = base.args[0]
        if base.op != "get_attr" and (names[base] in tensors.folded or not _is_swollen(base, bases)):
            bases[base] = names[base]
    for known in [base for base, name in bases.items() if name in tensors.folded]:
        _read(known, bases.pop(known))
    if bases:
        recipe = _recipe({name: base for base, name in bases.items()})
        tensors.recipes.append(recipe)
        _compute(recipe, tensors)
    for base, name in bases.items():
        _read(base, name)
    drop_dead_code(graph)


def refold(tensors: Registries) -> None:
    """Compute what was folded again, after the tensors it is made of have changed."""
    for recipe in tensors.recipes:
        _compute(recipe, tensors)


def _is_swollen(base: fx.Node, bases: Container[fx.Node]) -> bool:
    """Is it much larger than what it is made of?"""
    size = base.meta["val"].numel()
    if size <= SMALL:
        return False
    inner = upstream(base, lambda node: node.op != "get_attr" and node not in bases)
    sources = {arg for node in inner for arg in node.all_input_nodes} - {*inner}
    return bool(size > 2 * sum(node.meta["val"].numel() for node in sources))


def _read(base: fx.Node, name: str) -> None:
    base.op, base.target, base.args, base.kwargs = "get_attr", f"folded.{name}", (), {}


def _recipe(results: dict[str, fx.Node]) -> fx.Graph:
    """A graph of its own that computes these nodes, and what they share once."""
    needed = set[fx.Node]()
    for node in results.values():
        needed.update(upstream(node, lambda arg: arg not in needed))
    recipe, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in sorted(needed):
        copies[node] = recipe.node_copy(node, copies.__getitem__)
    recipe.output({name: copies[node] for name, node in results.items()})
    return recipe


def _compute(recipe: fx.Graph, tensors: Registries) -> None:
    """Add the results to what is folded; all else goes after its last use, as large as the weights it is made of."""
    sources = dict((*tensors.named_buffers(), *tensors.named_parameters()))
    values: dict[fx.Node, Any] = {node: sources[node.target] for node in recipe.find_nodes(op="get_attr")}
    results: Any = recipe.output_node().args[0]
    names = {node: name for name, node in results.items()}
    last = {arg: node for node in recipe.nodes for arg in node.all_input_nodes}
    with torch.no_grad():
        for node in recipe.nodes:
            evaluate([node], values)
            if node in names:
                tensors.folded[names[node]] = values[node] = aligned(values[node])[0]
            for arg in node.all_input_nodes:
                if last[arg] is node:
                    del values[arg]


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
