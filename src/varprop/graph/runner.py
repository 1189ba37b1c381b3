"""A flat graph with its tensors at hand: looking them up by path in every call costs more than small ops.

Or with its tensors far away: on another device, or in a file.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from varprop.graph.cuda_graphs import Replay


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


def offload(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """The graph of a module for a device where its tensors are not.

    Each comes there when it is first used and is let go after its last use, so that of the weights there is a layer at
    a time. Results stay there.
    """
    graph, values = fx.Graph(), dict[fx.Node, fx.Node]()

    def bring(node: fx.Node) -> None:
        values[node] = graph.call_function(fetch, (graph.node_copy(node), device))

    for node in module.graph.nodes:
        for source in node.all_input_nodes:
            if source not in values:
                bring(source)
        if node.op == "placeholder":
            bring(node)
        elif node.op != "get_attr":
            values[node] = new = graph.node_copy(node, values.__getitem__)
            # Devices that were captured are those of the tensors.
            new.args, new.kwargs = map_aggregate(
                (new.args, new.kwargs), lambda x: device if isinstance(x, torch.device) else x
            )
    return fx.GraphModule(module, graph)


def fetch(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.to(device)


def _place(module: fx.GraphModule, path: str) -> tuple[dict[str, Any], str]:
    parent, _, leaf = path.rpartition(".")
    owner = module.get_submodule(parent)
    return (owner._parameters if leaf in owner._parameters else owner._buffers), leaf
