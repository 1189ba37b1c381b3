"""A flat graph before it runs: no copies and views that nothing needs, and sums without a pass of their own."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from varprop.graph.captured import drop_dead_code, outline_of, write_op
from varprop.kernels.activations import activate
from varprop.kernels.custom_op import CALLS
from varprop.kernels.factored_ops import contracted, normalized
from varprop.kernels.float8 import spread
from varprop.kernels.norm_op import Results, normalize

aten = torch.ops.aten

SUMS: dict[Any, tuple[str, ...]] = {
    activate: ("by_var", "by_square", "ones"),
    normalized: ("by_numbers", "by_square", "more"),
}
"""Steps that sum their results up if asked to, and the arguments that ask for it."""
ADDS: dict[Any, dict[str, str]] = {
    normalize: {"mean": "more_mean", "var": "more_var"},
    normalized: {"mean": "more_mean"},
}
"""Norms: the arguments that may be sums, and those that take the second term. Sums are their last results."""
VIEWS = {aten.view.default, aten._unsafe_view.default}
RESHAPING = {aten.movedim.int, aten.select.int, aten.expand.default, aten.permute.default}
EXPANDING = {aten.expand.default, aten.expand_as.default}
COPIES = {aten.clone.default, aten.alias.default, aten.detach.default}


def simplify(graph: fx.Graph) -> None:
    """Rewrite a graph of pure ops in place."""
    for node in list(graph.nodes):
        source = node.args[0] if node.args else None
        if node.target in VIEWS:
            node.target = aten.reshape.default  # it may have relied on the strides of a copy
        elif node.target in COPIES and not set(node.kwargs) - {"memory_format"} and _is_computed(source):
            node.replace_all_uses_with(source)
        elif (same := _same_as(node)) is not None:
            node.replace_all_uses_with(same)
    drop_dead_code(graph)
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        first, second = node.args[:2]
        if not node.kwargs and _is_single_use_linear(first) and _is_single_use_linear(second) and len(second.args) == 2:
            node.target, node.args = two_products, (*first.args[:2], *second.args, *first.args[2:])
    for node in graph.nodes:
        node.target = CALLS.get(node.target, node.target)
    for node in graph.find_nodes(op="call_function", target=contracted):
        _fuse_contraction(node)
    for norm in (normalize, normalized):
        for node in graph.find_nodes(op="call_function", target=norm):
            _fuse_residual_sum(node)
            _fuse_scale(node)
            _fuse_concat(node)
    for node in graph.find_nodes(op="call_function", target=spread):
        _fuse_spread(node)
    drop_dead_code(graph)


def _fuse_contraction(sums: fx.Node) -> None:
    """What a layer wants of the moments of an activation or a norm is summed up where they are computed."""
    mean, var, *rest = sums.args
    call = _source(mean, var, SUMS)
    if call is None or not _are_constant(rest) or len(var.users) > 1:  # type: ignore[union-attr]
        return
    _give(call, **dict(zip(SUMS[call.target], _hoisted(rest, call), strict=True)))
    sums.replace_all_uses_with(var)  # type: ignore[arg-type]
    sums.graph.erase_node(sums)


def _fuse_spread(layer: fx.Node) -> None:
    """A norm writes at once what the variance of a layer behind it is made of, and its own where that is read too."""
    mean, var, *packed = layer.args
    norm = _source(mean, var, (normalize,))
    if norm is None or not _are_constant(packed) or _given(norm)["weights"] is not None:
        return
    graph = layer.graph
    with graph.inserting_after(norm):
        behind = graph.call_function(operator.getitem, (norm, Results._fields.index("spread")))
    behind.meta = dict(layer.meta)
    layer.replace_all_uses_with(behind)
    graph.erase_node(layer)
    weights, rows, columns, added = _hoisted(packed, norm)
    _give(norm, weights=weights, rows=rows, columns=columns, added=added, kept=bool(var.users))  # type: ignore[union-attr]


def _given(call: fx.Node) -> dict[str, Any]:
    """The arguments of a kernel by name."""
    return dict(zip(inspect.signature(call.target).parameters, call.args, strict=True))  # type: ignore[arg-type]


def _give(call: fx.Node, **more: Any) -> None:
    """Other arguments in the place of those of these names."""
    call.args = tuple((_given(call) | more).values())


def _source(mean: Any, var: Any, targets: Container[Any]) -> fx.Node | None:
    """The step of one of these kinds that gives both."""
    call: Any = mean.args[0] if isinstance(mean, fx.Node) and mean.target is operator.getitem else None
    pair = isinstance(call, fx.Node) and call.target in targets and isinstance(var, fx.Node)
    return call if pair and mean.args[1] == 0 and var.args == (call, 1) else None


def _are_constant(values: Sequence[Any]) -> bool:
    return all(x.op == "get_attr" for x in values if isinstance(x, fx.Node))


def _hoisted(constants: Sequence[Any], call: fx.Node) -> list[Any]:
    """To where ``call`` can take them."""
    with call.graph.inserting_before(call):
        return [call.graph.get_attr(x.target) if isinstance(x, fx.Node) else x for x in constants]  # type: ignore[arg-type]


def _fuse_residual_sum(norm: fx.Node) -> None:
    """The residual sum before a norm is computed with it; whoever else wants the sum gets it from there."""
    places, given, graph = ADDS[norm.target], _given(norm), norm.graph
    sums: list[Any] = [given[place] for place in places]
    if not all(_is_sum(node) and not any(user < norm for user in node.users) for node in sums):
        return
    with graph.inserting_after(norm):
        totals = [graph.call_function(operator.getitem, (norm, 2 + index)) for index in range(len(sums))]
    for node, total, (place, other) in zip(sums, totals, places.items(), strict=True):
        first, second = node.args
        _give(norm, **{place: first, other: second})
        total.meta = dict(node.meta)
        node.replace_all_uses_with(total)


def _is_sum(node: Any) -> bool:
    """A sum of two tensors of its own size and dtype."""
    if not isinstance(node, fx.Node) or node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return False
    return all(isinstance(x, fx.Node) and outline_of(x) == outline_of(node) != "" for x in node.args)


def _fuse_scale(norm: fx.Node) -> None:
    """α, by which numbers are multiplied before they are seen in another shape, is given to the norm."""
    if norm.target is not normalized:
        return
    view, inner = norm, norm.args[1]
    while isinstance(inner, fx.Node) and inner.target in RESHAPING and len(inner.users) == 1:
        view, inner = inner, inner.args[0]
    if not isinstance(inner, fx.Node) or inner.target is not aten.mul.Tensor or len(inner.users) > 1 or inner.kwargs:
        return
    numbers, factor = inner.args
    if not isinstance(factor, fx.Node) or factor.target is not aten.exp.default:
        return
    scale: Any = factor.args[0]
    if scale.op != "get_attr" or not scale.target.startswith("scale."):
        return
    view.replace_input_with(inner, numbers)  # type: ignore[arg-type]
    norm.graph.erase_node(inner)
    _give(norm, log_alpha=scale)


def _fuse_concat(norm: fx.Node) -> None:
    """The numbers of a residual sum are joined by the norm that reads them; who else wants them has them from there."""
    turned: Any = norm.args[1]
    if norm.target is not normalized or turned.target is not aten.movedim.int or len(turned.users) > 1:
        return
    chosen = turned.args[0]
    if chosen.target is not aten.select.int or len(chosen.users) > 1 or turned.args[1:] != (0, -1):
        return
    join, *place = chosen.args
    if join.target is not aten.cat.default or len(join.args[0]) != 2 or join.args[1:] not in ((), (0,)):
        return
    if place != [turned.meta["val"].ndim, 0] or any(user < norm for user in join.users if user is not chosen):
        return
    graph = norm.graph
    with graph.inserting_before(norm):
        parts = [_viewed(_viewed(x, aten.select.int, *place), aten.movedim.int, 0, -1) for x in join.args[0]]
    with graph.inserting_after(norm):
        joint = graph.call_function(operator.getitem, (norm, 3))
    joint.meta = dict(turned.meta)
    with graph.inserting_before(joint.next):
        again = _viewed(_viewed(joint, aten.movedim.int, -1, 0), aten.unsqueeze.default, place[0])
    _give(norm, numbers=parts[0], more_numbers=parts[1])
    for node in (turned, chosen):
        graph.erase_node(node)
    join.replace_all_uses_with(again)


def _viewed(x: fx.Node, op: Any, *args: Any) -> fx.Node:
    """A view of it, or what it is a view of itself."""
    view = write_op(x.graph, op, x, *args)
    return _same_as(view) or view


def _same_as(view: fx.Node) -> fx.Node | None:
    """What a view shows, if that is all of it and as it was."""
    x = view.args[0] if view.args else None
    if not isinstance(x, fx.Node):
        return None
    inner = x.args[0] if x.args and isinstance(x.args[0], fx.Node) else None
    if view.target in EXPANDING and outline_of(view) == outline_of(x) != "":
        return x if _is_computed(x) else None
    undone = {
        aten.select.int: (aten.unsqueeze.default, (*x.args[1:], 0)),
        aten.movedim.int: (aten.movedim.int, x.args[:0:-1]),
    }
    if view.target not in undone or not _is_computed(inner):
        return None
    op, args = undone[view.target]
    return inner if x.target is op and view.args[1:] == args else None


def _is_computed(node: object) -> bool:
    """Not a tensor of the caller or of the network, which a result may not be."""
    return isinstance(node, fx.Node) and node.op not in ("placeholder", "get_attr")


def _is_single_use_linear(node: object) -> bool:
    """A linear layer's product that nothing else reads."""
    return isinstance(node, fx.Node) and node.target is aten.linear.default and len(node.users) == 1


def two_products(x: Tensor, weight: Tensor, y: Tensor, other: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + y Vᵀ + b; the second product is added up where the first lies."""
    first = torch.nn.functional.linear(x, weight, bias)
    if torch.compiler.is_compiling() or first.is_cpu or x.ndim < 2:
        return first + torch.nn.functional.linear(y, other)
    first.view(-1, first.shape[-1]).addmm_(y.reshape(-1, y.shape[-1]), other.t())
    return first
