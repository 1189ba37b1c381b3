"""The graphs of a network in two stages: what the trained scales cannot change, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from varprop.batch import Batch
from varprop.graph.captured import drop_dead_code, reachable
from varprop.graph.compiler import Plan, assemble
from varprop.graph.registry import scale_path
from varprop.moments import Moments, moments_of
from varprop.network.moment_net import MomentNet


class Prepared(NamedTuple):
    """A batch after the first stage: all that the second one needs, computed without the scales."""

    live: fx.GraphModule
    values: tuple[Any, ...]
    target: Tensor

    def finish(self) -> Moments:
        return moments_of(*self.live(*self.values))

    @property
    def nbytes(self) -> int:
        """Of all values, each storage counted once."""
        storages = [x.untyped_storage() for x in self.values if isinstance(x, Tensor)]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class StagedNet:
    """``prepare(batch, …).finish()`` is what the network computes; ``prepare`` has to run only once for each batch."""

    def __init__(self, net: MomentNet) -> None:
        self.net = net
        self._stages: dict[int, tuple[fx.GraphModule, fx.GraphModule]] = {}

    def prepare(self, batch: Batch, trained: Callable[[], Iterable[str]]) -> Prepared:
        """``trained`` names the scales that are not fixed; it is called where the batch needs a new graph."""
        batch = batch.to(self.net.device)
        plan, leaves = self.net.plan(batch.args, batch.kwargs)
        if id(plan) not in self._stages:
            self._stages[id(plan)] = split(self.net, plan, {scale_path(name) for name in trained()})
        frozen, live = self._stages[id(plan)]
        with torch.no_grad():
            return Prepared(live, frozen(*leaves), batch.target)


def split(net: MomentNet, plan: Plan, trained: set[str]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Cut the graph of ``plan`` between what depends on the scales at the paths ``trained`` and what does not.

    ``live(*frozen(*leaves))`` is what the graph computes.
    """
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
    return assemble(frozen, net), assemble(rest, net)
