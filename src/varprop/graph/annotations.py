"""Annotations that a forward leaves in its own graph while it is captured, read and removed right after."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, fx

from varprop.errors import CaptureError
from varprop.graph.captured import Captured, Guards, drop_dead_code, place_of, reachable


@torch.library.custom_op("varprop::annotate", mutates_args=())
def annotate(x: Tensor, kind: str, name: str) -> None:
    """What a value is: the ``in`` or the ``out`` of a module of this path, or the op of a recurrent cell with this
    ``role``, the same in every step.
    """


@torch.library.custom_op("varprop::guard", mutates_args=())
def guard(x: Tensor, value: float, reason: str) -> None:
    """The graph is valid for calls in which x is this value."""


@torch.library.custom_op("varprop::pack", mutates_args=())
def pack(padded: Tensor) -> Tensor:
    """[time, batch, features] in a shape that packed sequences may have; only ``unpack`` can make use of it."""
    return padded.flatten(0, 1).clone()


@torch.library.custom_op("varprop::unpack", mutates_args=())
def unpack(data: Tensor, steps: int, batch: int) -> Tensor:
    return data.unflatten(0, (steps, batch)).clone()


annotate.register_fake(lambda x, kind, name: None)
guard.register_fake(lambda x, value, reason: None)
pack.register_fake(lambda padded: padded.new_empty(padded.shape[0] * padded.shape[1], *padded.shape[2:]))
unpack.register_fake(lambda data, steps, batch: data.new_empty(steps, batch, *data.shape[1:]))

ops = torch.ops.varprop
fx.node.has_side_effect(ops.annotate.default)  # else it would be removed before we read it
fx.node.has_side_effect(ops.guard.default)


def read_annotations(captured: Captured) -> None:
    """Take them all out of the graph."""
    graph = captured.graph
    nodes = {"in": captured.module_inputs, "out": captured.module_outputs}
    for node in graph.find_nodes(op="call_function", target=ops.annotate.default):
        x, kind, name = node.args
        if kind == "role":
            x.meta["role"] = name
        elif x.target is not ops.pack.default:  # the model has another shape there
            nodes[kind][name] = x
        graph.erase_node(node)
    guarded = []
    for node in graph.find_nodes(op="call_function", target=ops.guard.default):
        x, value, reason = node.args
        guarded.append((x, value, f"{reason} at {place_of(node)}"))
        graph.erase_node(node)
    _cancel_packing(graph)
    if guarded:
        captured.guards = _guards(captured, guarded)


def _cancel_packing(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=ops.unpack.default):
        node.replace_all_uses_with(node.args[0].args[0])
        graph.erase_node(node)
    for node in graph.find_nodes(op="call_function", target=ops.pack.default):
        if node.users:
            user = next(iter(node.users))
            raise CaptureError(
                f"{user.target} at {place_of(user)} reads the data of a packed sequence, whose size depends on "
                "values: do that before packing it, or after pad_packed_sequence"
            )


def _guards(captured: Captured, guarded: list[tuple[fx.Node, float, str]]) -> Guards:
    """Of a graph as it was captured, the part that computes the values.

    One that depends on weights is another for nearly every input, and as costly as the model.
    """
    reached = reachable(captured.graph, [node for node, (kind, _) in captured.tensors.items() if kind == "mean"])
    for node, _, reason in guarded:
        if node in reached:
            raise CaptureError(
                f"it cannot be captured: {reason} that depends on weights; a graph would hold for "
                "these inputs alone. Propagate a submodule or rewrite that part; transformers' experts need none with "
                'model.set_experts_implementation("grouped_mm")'
            )
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.graph_copy(captured.graph, copies)
    graph.output([copies[node] for node, *_ in guarded])
    drop_dead_code(graph)
    tensors = {copies[node]: name for node, name in captured.tensors.items()}
    inputs = [copies[node] for node in captured.inputs]
    part = dataclasses.replace(captured, graph=graph, tensors=tensors, inputs=inputs)
    return Guards(part, [(copies[node], value, reason) for node, value, reason in guarded])
