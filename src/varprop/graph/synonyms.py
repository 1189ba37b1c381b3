"""Ops that are others under another name, or made of them: rules are written once."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import fx

from varprop.graph.captured import Captured
from varprop.rules import functions

aten = torch.ops.aten


def name_instance_norms(captured: Captured) -> None:
    """Batch norm by the statistics of a batch that is one, as weights are standardised, is instance norm."""
    for node in captured.ops():
        args: Any = node.args
        first = args[0] if node.target is aten._native_batch_norm_legit.no_stats else None
        if first is None or str(first.meta["val"].shape[0]) != "1" or not args[3]:
            continue
        x, weight, bias, _, momentum, eps = args
        with captured.graph.inserting_before(node):
            options = (x, weight, bias, None, None, True, momentum, eps, False)
            new = captured.graph.call_function(aten.instance_norm.default, options)
        new.meta = node.meta | {"val": node.meta["val"][0]}
        for user in list(node.users):
            if user.args[1] == 0:
                user.replace_all_uses_with(new)
                captured.graph.erase_node(user)
        if not node.users:
            captured.graph.erase_node(node)


def use_synonyms(captured: Captured, reached: set[fx.Node]) -> None:
    """Rewrite ``captured`` in place; to ``reached``, which variance can reach, what is new there is added."""
    _experts(captured)
    _windows(captured)
    _polar(captured)
    _random_bounds(captured, reached)


def _experts(captured: Captured) -> None:
    """Torch and transformers have an op each; the latter's is there only once transformers is imported."""
    for node in captured.ops():
        if str(node.target) in ("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default"):
            args = (*node.args, *node.kwargs.values())
            if len(args) == 3 and set(node.kwargs) <= {"offs"}:
                node.target, node.args, node.kwargs = functions.grouped_matmul, (node.target, *args), {}  # type: ignore[assignment]


def _windows(captured: Captured) -> None:
    """Strides are those of the model's tensor, which the moments need not share unless it is contiguous."""
    for node in captured.graph.find_nodes(op="call_function", target=aten.as_strided.default):
        if node.args[0].meta["val"].is_contiguous() and not node.kwargs:
            node.target = functions.spread


def _polar(captured: Captured) -> None:
    """Lengths and angles of complex numbers are other functions than those of real ones; the imaginary part of a
    conjugate is what torch negates when it is read.
    """
    polar = {aten.abs.default: functions.modulus, aten.angle.default: functions.argument}
    for node in captured.ops():
        if node.target in polar and is_complex(node.args[0]):
            node.target = polar[node.target]
        elif node.target is aten._neg_view.default:
            node.target = aten.neg.default


def is_complex(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


LARGER, SMALLER = ("min", aten.maximum.default), ("max", aten.minimum.default)
BOUNDED: dict[Any, tuple[tuple[str, Any], ...]] = {
    aten.clamp.Tensor: (LARGER, SMALLER),
    aten.clamp_min.Tensor: (LARGER,),
    aten.clamp_max.Tensor: (SMALLER,),
}


def _random_bounds(captured: Captured, reached: set[fx.Node]) -> None:
    """A clamp whose bounds are random is a maximum and a minimum of two random numbers."""
    for node in captured.ops():
        x, *given = node.args
        if node.target not in BOUNDED or not any(bound in reached for bound in (*given, *node.kwargs.values())):
            continue
        for (name, op), bound in itertools.zip_longest(BOUNDED[node.target], given):
            limit: Any = node.kwargs.get(name, bound)
            if limit is not None:
                with captured.graph.inserting_before(node):
                    value = op(x.meta["val"], limit.meta["val"])  # type: ignore[union-attr]
                    x = captured.graph.call_function(op, (x, limit))
                    x.meta = node.meta | {"val": value}
                    reached.add(x)
        captured.exchange(node, x)  # type: ignore[arg-type]
