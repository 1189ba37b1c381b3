"""What rewriting a graph takes: seeing through casts, and putting one op in the place of others."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from varprop.graph.captured import Captured

aten = torch.ops.aten

IDENTITIES = {
    aten.clone.default,
    aten._to_copy.default,
    aten.alias.default,
    aten.detach.default,
    aten.contiguous.default,
}


def is_plain(node: fx.Node, target: Any) -> bool:
    """Is it this sum or difference, and not one with a factor on the second term?"""
    return node.target is target and bool(node.kwargs.get("alpha", 1) == 1)


def see_through(node: Any) -> Any:
    while isinstance(node, fx.Node) and is_transparent(node):
        node = node.args[0]
    return node


def is_transparent(node: fx.Node) -> bool:
    """Does the op hand on its input? A cast to integers does not."""
    return node.target in IDENTITIES and node.meta["val"].is_floating_point()


def shape_of(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return str(tuple(value.shape)) if isinstance(value, torch.Tensor) else None  # text: comparing symbols adds guards


def replace(captured: Captured, node: fx.Node, target: Any, args: Any, kwargs: dict[str, Any] | None = None) -> None:
    """Put ``target(*args)`` in the place of ``node``; its old inputs go when nothing else uses them."""
    graph = captured.graph
    with graph.inserting_before(node):
        new = graph.call_function(target, tuple(args), kwargs or {})
        new.meta = dict(node.meta)
        source = next(arg for arg in args if isinstance(arg, fx.Node))
        if source.meta["val"].dtype != node.meta["val"].dtype:  # casts inside a chain were seen through
            new = graph.call_function(aten._to_copy.default, (new,), {"dtype": node.meta["val"].dtype})
            new.meta = dict(node.meta)
    captured.exchange(node, new)
