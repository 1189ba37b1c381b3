"""Canonical forms: ops that are others under another name, or made of them, so that rules are written once."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from varprop.graph.captured import Captured, arguments, write_op
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


def canonicalize(captured: Captured, reached: set[fx.Node]) -> None:
    """Rewrite ``captured`` in place; to ``reached``, which variance can reach, what is new there is added."""
    _experts(captured)
    _windows(captured)
    _polar(captured)
    _quotients(captured)
    _random_bounds(captured, reached)
    _patches(captured, reached)


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


def _quotients(captured: Captured) -> None:
    """A division that rounds in no way."""
    plain = {aten.div.Tensor_mode: aten.div.Tensor, aten.div.Scalar_mode: aten.div.Scalar}
    for node in captured.ops():
        if node.target in plain and arguments(node)["rounding_mode"] is None:
            node.target, node.kwargs = plain[node.target], {}


def is_complex(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _random_bounds(captured: Captured, reached: set[fx.Node]) -> None:
    """A clamp whose bounds are random is a maximum and a minimum of two random numbers."""
    clamps = (aten.clamp.Tensor, aten.clamp_min.Tensor, aten.clamp_max.Tensor)
    for node in captured.ops():
        given = arguments(node) if node.target in clamps else {}
        low, high = given.get("min"), given.get("max")
        if low not in reached and high not in reached:
            continue
        x = given["self"]
        if low is not None:
            x = _write(captured, reached, node, aten.maximum.default, x, low)
        if high is not None:
            x = _write(captured, reached, node, aten.minimum.default, x, high)
        captured.exchange(node, x)


def _patches(captured: Captured, reached: set[fx.Node]) -> None:
    """A convolution that looks at each pixel once is a linear layer of patches, which is faster."""
    for node in captured.graph.find_nodes(op="call_function", target=aten.conv2d.default):
        if node not in reached or not (size := _tiling(node)):
            continue
        x, weight, bias = (arguments(node)[name] for name in ("input", "weight", "bias"))
        features, channels = weight.meta["val"].shape[:2]
        rows, columns = (n // k for n, k in zip(x.meta["val"].shape[2:], size, strict=True))
        entries = channels * size[0] * size[1]
        write = functools.partial(_write, captured, reached, node)
        tiles = write(aten.reshape.default, x, [-1, channels, rows, size[0], columns, size[1]])
        patches = write(aten.permute.default, tiles, [0, 2, 4, 1, 3, 5])
        flat = write(aten.reshape.default, patches, [-1, rows, columns, entries])
        matrix = write(aten.reshape.default, weight, [features, entries])
        product = write(aten.linear.default, flat, matrix, bias)
        captured.exchange(node, write(aten.permute.default, product, [0, 3, 1, 2]))


def _write(captured: Captured, reached: set[fx.Node], before: fx.Node, op: Any, *args: Any) -> fx.Node:
    with captured.graph.inserting_before(before):
        new = write_op(captured.graph, op, *args)
    new.meta = before.meta | new.meta
    reached.add(new)
    return new


def _tiling(convolution: fx.Node) -> list[int] | None:
    """The size of its patches, if they tile an image of known size."""
    given = arguments(convolution)
    image, size = given["input"].meta["val"].shape, [*given["weight"].meta["val"].shape[2:]]
    apart = [*given["stride"]] == size != [1, 1] and not any(given["padding"])
    whole = [*given["dilation"]] == [1, 1] and given["groups"] == 1
    fits = len(image) == 4 and all(isinstance(n, int) and n % k == 0 for n, k in zip(image[2:], size, strict=True))
    return size if apart and whole and fits else None
