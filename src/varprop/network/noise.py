"""Which ops combine values that share noise, though their rules take them as independent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from varprop.graph.captured import Captured
from varprop.graph.interpreter import Applied
from varprop.rules import functions
from varprop.rules.reduction import dims_of
from varprop.rules.structural import COPIES, MOVES, STRUCTURAL

aten = torch.ops.aten

OPERANDS = "its operands share a source and are taken as independent"
ENTRIES = "entries of its input share noise and are taken as independent"

# The dim of the result along which entries have weights of their own.
FEATURES: dict[Any, int] = {
    aten.linear.default: -1,
    functions.residual_linear: -1,
    aten.layer_norm.default: -1,
    aten.rms_norm.default: -1,
    aten.conv1d.default: 1,
    aten.conv2d.default: 1,
    aten.conv3d.default: 1,
    aten.conv1d.padding: 1,
    aten.conv2d.padding: 1,
    aten.conv3d.padding: 1,
    aten.group_norm.default: 1,
    aten._native_batch_norm_legit_no_training.default: 1,
}
IN_PLACE = {aten.alias.default, aten.clone.default, aten.contiguous.default, aten.detach.default}


@dataclass(frozen=True)
class Noise:
    """Where the noise of a tensor comes from, and how its entries share it."""

    sources: frozenset[fx.Node]
    """The random parameters and inputs it depends on."""
    apart: frozenset[int]
    """Dims: two entries with different places along one of them share no noise. Too few rather than too many."""


def shared_noise(captured: Captured, applied: list[Applied], starts: Iterable[fx.Node]) -> dict[fx.Node, list[str]]:
    """What each op takes as independent although it is not.

    Entries of parameters and inputs are independent. After a layer with random weights, tokens and pixels share their
    noise, features do not; after the next layer, all do.
    """
    noise = {node: Noise(frozenset([node]), _all(node)) for node in starts}
    entries = {entry.node: entry for entry in applied}
    found: dict[fx.Node, list[str]] = {}
    for node in captured.ops():
        operands = [arg for arg in operands_of(node) if arg in noise]
        entry = entries.get(node)
        if not operands or (entry and not entry.leaves):
            continue
        sources = frozenset[fx.Node]().union(*(noise[arg].sources for arg in operands))
        overlap = sum(len(noise[arg].sources) for arg in operands) > len(sources)
        mixes = bool(entry and entry.rule and entry.rule.mixes)
        found[node] = [OPERANDS] if overlap and node.target not in STRUCTURAL else []
        if mixes and any(not _summed(node, arg) <= noise[arg].apart for arg in operands):
            found[node].append(ENTRIES)
        apart = frozenset[int]() if overlap or found[node] else _apart(node, noise, mixes)
        noise[node] = Noise(sources, apart)
    return found


def operands_of(node: fx.Node) -> list[fx.Node]:
    """The inputs of an op, a tensor it takes twice twice."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def _sizes(node: fx.Node) -> tuple[str, ...]:
    value = node.meta["val"]
    return tuple(map(str, value.shape if isinstance(value, Tensor) else value[0].shape))


def _all(node: fx.Node) -> frozenset[int]:
    return frozenset(range(len(_sizes(node))))


def _summed(node: fx.Node, arg: fx.Node) -> frozenset[int]:
    """The dims of an operand over which a mixing op adds up; all of them if it is not known which."""
    if node.target in (aten.linear.default, functions.residual_linear) and arg is node.args[0]:
        return frozenset([len(_sizes(arg)) - 1])
    if node.target in (aten.layer_norm.default, aten.rms_norm.default) and arg is node.args[0]:
        return frozenset(range(len(_sizes(arg)))[-len(node.args[1]) :])  # type: ignore[arg-type]
    if node.target in (aten.sum.dim_IntList, aten.mean.dim) and len(node.args) > 1:
        return frozenset(dims_of(arg.meta["val"].ndim, node.args[1]))
    return _all(arg)


def _apart(node: fx.Node, noise: dict[fx.Node, Noise], mixes: bool) -> frozenset[int]:
    """The dims along which the entries of a result are independent."""
    first: Any = node.args[0]
    parts = [(arg, noise[arg].apart) for arg in operands_of(node) if arg in noise]
    if node.target in FEATURES and (first not in noise or not mixes):
        kept = noise[first].apart if first in noise else _all(node)
        weights = [arg for arg, _ in parts if arg is not first]
        return kept & {FEATURES[node.target] % len(_sizes(node))} if weights else kept
    if mixes or node.target in COPIES:
        return frozenset()
    if node.target in MOVES and node.target not in IN_PLACE:
        return _all(node) if all(apart == _all(arg) for arg, apart in parts) else frozenset()
    return frozenset[int].intersection(*(_broadcast(node, arg, apart) for arg, apart in parts))


def _broadcast(node: fx.Node, arg: fx.Node, apart: frozenset[int]) -> frozenset[int]:
    """The dims of an elementwise result that are those of an operand, not copies of it."""
    sizes, own = _sizes(node), _sizes(arg)
    shift = len(sizes) - len(own)
    if shift < 0:  # an op without a rule, which is not elementwise after all
        return frozenset()
    return frozenset(dim + shift for dim in apart if own[dim] == sizes[dim + shift])
