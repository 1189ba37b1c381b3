"""A flat graph with its tensors at hand: looking them up by path in every call costs more than small ops."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from varprop.graph.replay import Replay


class Runner:
    """Runs the graph of a module; its tensors are read where the module keeps them, so they may be replaced there."""

    def __init__(self, module: fx.GraphModule) -> None:
        graph, values = fx.Graph(), dict[fx.Node, fx.Node]()
        tensors = module.graph.find_nodes(op="get_attr")
        for node in (*module.graph.find_nodes(op="placeholder"), *tensors):
            values[node] = graph.placeholder(node.name)
        for node in module.graph.nodes:
            if node not in values:
                values[node] = graph.node_copy(node, values.__getitem__)
        self.replay = Replay(fx.GraphModule(module, graph))
        self.places = [_place(module, str(node.target)) for node in tensors]

    def __call__(self, *leaves: Tensor) -> Any:
        return self.replay(leaves, [owner[leaf] for owner, leaf in self.places])


def _place(module: fx.GraphModule, path: str) -> tuple[dict[str, Any], str]:
    parent, _, leaf = path.rpartition(".")
    owner = module.get_submodule(parent)
    return (owner._parameters if leaf in owner._parameters else owner._buffers), leaf
