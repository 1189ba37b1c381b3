"""Notes that a forward leaves in its own graph while it is captured, read and removed right after."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from varprop.errors import CaptureError
from varprop.graph.captured import Captured, place_of
from varprop.graph.pins import read_pins


@torch.library.custom_op("varprop::mark", mutates_args=())
def mark(x: Tensor, key: str) -> None:
    """Notes what a value is: ``in:path`` or ``out:path`` of a module, ``role:name`` of an op in a cell.

    ``value:3:reason`` notes that the graph is good for calls in which it is 3, and why.
    """


@torch.library.custom_op("varprop::pack", mutates_args=())
def pack(padded: Tensor) -> Tensor:
    """[time, batch, features] in a shape that packed sequences may have; only ``unpack`` can make use of it."""
    return padded.flatten(0, 1).clone()


@torch.library.custom_op("varprop::unpack", mutates_args=())
def unpack(data: Tensor, steps: int, batch: int) -> Tensor:
    return data.unflatten(0, (steps, batch)).clone()


@mark.register_fake
def _(x: Tensor, key: str) -> None:
    return None


@pack.register_fake
def _(padded: Tensor) -> Tensor:
    return padded.new_empty(padded.shape[0] * padded.shape[1], *padded.shape[2:])


@unpack.register_fake
def _(data: Tensor, steps: int, batch: int) -> Tensor:
    return data.new_empty(steps, batch, *data.shape[1:])


fx.node.has_side_effect(torch.ops.varprop.mark.default)  # else it would be removed before we read it


def read_marks(captured: Captured) -> None:
    """Take all notes out of the graph."""
    graph, op = captured.graph, torch.ops.varprop
    kinds = {"in": captured.module_inputs, "out": captured.module_outputs}
    pinned: list[tuple[fx.Node, str]] = []
    for node in graph.find_nodes(op="call_function", target=op.mark.default):
        marked, (kind, _, text) = node.args[0], node.args[1].partition(":")
        if kind == "role":
            captured.roles[marked] = text
        elif kind == "value":
            pinned.append((marked, f"{text} at {place_of(node)}"))
        elif marked.target is not op.pack.default:  # the model has another shape there
            kinds[kind][text] = marked
        graph.erase_node(node)
    _cancel_packing(graph)
    if pinned:
        captured.pins = read_pins(captured, pinned)


def _cancel_packing(graph: fx.Graph) -> None:
    op = torch.ops.varprop
    for node in graph.find_nodes(op="call_function", target=op.unpack.default):
        node.replace_all_uses_with(node.args[0].args[0])
        graph.erase_node(node)
    for node in graph.find_nodes(op="call_function", target=op.pack.default):
        if node.users:
            user = next(iter(node.users))
            raise CaptureError(
                f"{user.target} at {place_of(user)} reads the data of a packed sequence, whose size depends on "
                "values: do that before packing it, or after pad_packed_sequence"
            )
