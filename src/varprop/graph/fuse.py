"""Pointwise steps that follow each other become one, where Triton runs."""

from __future__ import annotations

import hashlib
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupport

from varprop.graph.captured import format_args, outline_of, shape_of
from varprop.kernels.region import Region, results_of
from varprop.kernels.triton_ops import WRITE

aten = torch.ops.aten

MIN_STEPS = 2  # steps that are worth a kernel of their own
PREFIX = "region"


def fuse(module: fx.GraphModule, pointwise: nn.ModuleDict) -> None:
    """In place. Equal regions share a module of ``pointwise``; their tensors, which differ, are its arguments."""
    for outline in _candidates(module.graph):
        partitioner = _Partitioner(module, outline)
        found = [part for part in partitioner.propose_partitions() if _size(part.nodes) >= MIN_STEPS]
        if found:
            partitioner.fuse_partitions(found, prefix=PREFIX)
            _share(module, pointwise)


def _candidates(graph: fx.Graph) -> list[str]:
    """Outlines of steps of which one takes what another gives; to look for regions takes a while."""
    outlines = {node: _outline(node) for node in graph.nodes}
    steps = [node for node in graph.nodes if outlines[node] and node.target is not operator.getitem]
    linked = [node for node in steps if any(outlines[x] == outlines[node] for x in node.all_input_nodes)]
    return list(dict.fromkeys(outlines[node] for node in linked))


def _share(module: fx.GraphModule, pointwise: nn.ModuleDict) -> None:
    """Move what was fused to where all graphs of a network find it."""
    for node in module.graph.find_nodes(op="call_module"):
        if node.target.startswith(PREFIX):
            steps: Any = module.get_submodule(node.target)
            _join_results(node, steps)
            module.delete_submodule(node.target)
            name = f"{PREFIX}_{_key(steps)}"
            if name not in pointwise:
                pointwise[name] = Region(steps)
            node.target = f"pointwise.{name}"
    module.recompile()


def _join_results(call: fx.Node, steps: fx.GraphModule) -> None:
    """Results that are wanted side by side are written so."""
    results: list[Any] = results_of(steps.graph)
    parts: dict[Any, Any] = {user: user.args[1] for user in call.users if user.target is operator.getitem}
    users = dict.fromkeys(user for part in parts for user in part.users)
    joins: list[Any] = [user for user in users if _is_join(user) and {*user.args[0]} <= {*parts}]
    if not joins:
        return
    for join in joins:
        with steps.graph.inserting_before(steps.graph.output_node()):
            results.append(steps.graph.call_function(aten.cat.default, ([results[parts[x]] for x in join.args[0]], 1)))
        results[-1].meta["val"] = join.meta["val"]
        join.target, join.args, parts[join] = operator.getitem, (call, len(results) - 1), len(results) - 1
    for part in [part for part in parts if not part.users]:
        call.graph.erase_node(part)
        del parts[part]
    kept = sorted(parts.values())
    for part, index in parts.items():
        part.args = call, kept.index(index)
    steps.graph.output_node().args = (tuple(results[index] for index in kept),)
    steps.graph.eliminate_dead_code()
    steps.recompile()


def _is_join(node: fx.Node) -> bool:
    return node.target is aten.cat.default and node.args[1:] == (1,) and node.meta["val"].ndim > 2


class _Partitioner(CapabilityBasedPartitioner):
    """Finds steps whose results are of one shape and dtype, from tensors of that shape, vectors and numbers."""

    def __init__(self, module: fx.GraphModule, outline: str) -> None:
        super().__init__(module, OperatorSupport(), allows_single_node_partition=True)
        self.outline = outline

    def _is_node_supported(self, node: fx.Node) -> bool:
        """Without a list of all modules of the network at every node, which is nine tenths of its time."""
        return _outline(node) == self.outline


def _outline(node: fx.Node) -> str:
    """Shape and dtype of a step that a region may have; empty for any other."""
    source: Any = node.args[0] if node.args else None
    if node.op == "call_module":
        return outline_of(source) if str(node.target).startswith("pointwise.") else ""
    if node.op != "call_function":
        return ""
    if node.target is operator.getitem:
        return _outline(source) if source.op == "call_module" else ""
    result = node.meta.get("val")
    if node.target not in WRITE or set(node.kwargs) - {"alpha"} or not isinstance(result, Tensor):
        return ""
    fits = result.is_floating_point() and result.ndim > 1 and all(_fits(x, result) for x in node.all_input_nodes)
    return outline_of(node) if fits else ""


def _fits(node: fx.Node, result: Tensor) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    sizes, full = shape_of(node), [*map(str, result.shape)]
    sizes = ["1"] * (len(full) - len(sizes)) + sizes
    apart = sum(size != whole for size, whole in zip(sizes, full, strict=True))  # where it is repeated
    return apart <= 1 or sum(size != "1" for size in sizes) <= 1


def _size(nodes: Any) -> int:
    return sum(node.target is not operator.getitem for node in nodes)


def _key(steps: fx.GraphModule) -> str:
    """The same for steps that differ in the names of their tensors alone."""
    names = {node: f"n{index}" for index, node in enumerate(steps.graph.nodes)}
    lines = [f"{node.op} {_kind_of(node)} {format_args((node.args, node.kwargs), names)}" for node in steps.graph.nodes]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def _kind_of(node: fx.Node) -> str:
    value = node.meta.get("val")
    dtype = value.dtype if isinstance(value, Tensor) else ""
    return f"{dtype}" if node.op in ("placeholder", "output") else f"{node.target} {dtype}"
