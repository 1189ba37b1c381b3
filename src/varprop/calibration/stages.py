"""A graph in two stages: what the trained scales cannot change, and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from varprop.graph.captured import drop_dead_code, reachable
from varprop.graph.compiler import Plan, assemble
from varprop.graph.registry import Registries
from varprop.moments import Moments


@dataclass
class Stages:
    """``live(*frozen(*leaves))`` is what the graph computes; ``frozen`` has to run only once for each batch."""

    frozen: fx.GraphModule
    live: fx.GraphModule

    @torch.no_grad()
    def prepare(self, leaves: list[Tensor]) -> tuple[Any, ...]:
        """Everything the live stage needs, computed without the scales."""
        return self.frozen(*leaves)

    def finish(self, prepared: tuple[Any, ...]) -> Moments:
        mean, var = self.live(*prepared)
        return Moments(mean, var)


def stages(tensors: Registries, plan: Plan, trained: set[str]) -> Stages:
    """Cut the graph of ``plan`` between what depends on the scales at the paths ``trained`` and what does not."""
    graph = plan.module.graph
    scales = [node for node in graph.find_nodes(op="get_attr") if node.target.removeprefix("scale.") in trained]
    live = reachable(graph, scales) | {graph.output_node()}
    # In the order of the graph. Tensors of the network are looked up where they are used.
    boundary = [n for n in graph.nodes if n not in live and n.op != "get_attr" and any(u in live for u in n.users)]

    frozen, rest = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node not in live:
            copies[node] = frozen.node_copy(node, copies.__getitem__)
    frozen.output(tuple(copies[node] for node in boundary))

    copies = {node: rest.placeholder(node.name) for node in boundary}
    for node in graph.nodes:
        if node.op == "get_attr" or node in live:
            copies[node] = rest.node_copy(node, copies.__getitem__)
    for stage in (frozen, rest):
        drop_dead_code(stage)
    return Stages(assemble(frozen, tensors), assemble(rest, tensors))


def size_of(prepared: tuple[Any, ...]) -> int:
    """Bytes of all tensors, each storage counted once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in prepared if isinstance(x, Tensor)}
    return sum(storages.values())
