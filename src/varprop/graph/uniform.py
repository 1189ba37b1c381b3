"""Weights of one common variance, as in an isotropic posterior: Σ_W μx² is a sum of squares instead of a product."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, fx

from varprop.graph.captured import arguments, shape_of, upstream, write_op
from varprop.graph.merge import CONVOLUTIONS
from varprop.graph.registry import Registries
from varprop.graph.trace_cache import TraceCache, fake_mode_of
from varprop.kernels.float8 import pack_uniform

aten = torch.ops.aten

LAYERS = aten.linear.default, aten.matmul.default, aten.mm.default


def sum_uniform(graph: fx.Graph, tensors: Registries) -> None:
    """Replace layers whose weights are a constant c by c Σ_d x_d, which is the same for all outputs; a convolution by
    one from the sum of its channels. Products of 8 bits stay products, of half as many entries. In place, before
    constants are folded.

    Which variances are uniform is looked up once: weights that are loaded later compile the network anew.
    """
    known = functools.cache(lambda path: _is_uniform(tensors.var[path]))

    def is_uniform(weight: Any) -> bool:
        registry, _, path = str(getattr(weight, "target", "")).partition(".")
        return registry == "var" and known(path)

    for target in LAYERS + CONVOLUTIONS:
        for node in graph.find_nodes(op="call_function", target=target):
            if _fits(node) and is_uniform(node.args[1]):
                _replace(graph, node)
    traces = TraceCache(graph, fake_mode_of(graph), tensors.constant)
    for node in graph.find_nodes(op="call_function", target=torch.ops.varprop.spread.default):
        if is_uniform(_packed(node)[1]):
            _pack_anew(node, traces)


def _is_uniform(var: Tensor) -> bool:
    """Variances of 0 are not: they may be those of a posterior whose width is being searched."""
    if var.is_meta or not var.numel():
        return False
    first = var.flatten()[0]
    return bool(first > 0) and bool((var == first).all())


def _fits(node: fx.Node) -> bool:
    x, weight, *_ = node.args
    if node.kwargs or not isinstance(x, fx.Node) or not isinstance(weight, fx.Node):
        return False
    if node.target in CONVOLUTIONS:
        return bool(arguments(node)["groups"] == 1)
    return bool(weight.meta["val"].ndim == 2)


def _replace(graph: fx.Graph, node: fx.Node) -> None:
    args: tuple[Any, ...] = node.args
    x, weight, bias, *settings = args if len(args) > 2 else (*args, None)
    alike = bias is None and _is_added(node)
    call = functools.partial(write_op, graph)
    with graph.inserting_before(node):

        def first(tensor: Any) -> Any:
            """Of all outputs, if they are alike."""
            return call(aten.narrow.default, tensor, 0, 0, 1) if alike else tensor

        if node.target in CONVOLUTIONS:
            channels = x.meta["val"].ndim - weight.meta["val"].ndim + 1
            total = call(aten.sum.dim_IntList, x, [channels], True)
            result = call(node.target, total, first(call(aten.narrow.default, weight, 1, 0, 1)), bias, *settings)
        else:
            inputs = 1 if node.target is aten.linear.default else 0
            total = call(aten.sum.dim_IntList, x, [-1], True)
            result = call(aten.mul.Tensor, total, first(call(aten.select.int, weight, inputs, 0)))
            result = result if bias is None else call(aten.add.Tensor, result, bias)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _packed(layer: fx.Node) -> Any:
    """E[W²] and Σ_W, of which the weights of 8 bits are made."""
    weights: Any = layer.args[2]
    return [node for node in upstream(weights) if node.target is aten.cat.default][-1].args[0]


def _pack_anew(layer: fx.Node, traces: TraceCache) -> None:
    """With one number in the place of Σ_W."""
    with layer.graph.inserting_before(layer):
        packed = traces.write("pack", lambda *halves: (None, pack_uniform(*halves)), *_packed(layer))[1]
    layer.args = (*layer.args[:2], *packed, layer.args[5])


def _is_added(node: fx.Node) -> bool:
    """Only to tensors of its own shape, which broadcast what is the same for all outputs."""

    def full(other: Any) -> bool:
        return isinstance(other, fx.Node) and other is not node and shape_of(other) == shape_of(node)

    return all(user.target is aten.add.Tensor and any(map(full, user.args[:2])) for user in node.users)
