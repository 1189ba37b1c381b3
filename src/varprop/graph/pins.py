"""Values of its inputs that a graph was captured with: it is good for calls that have the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from varprop.errors import CaptureError
from varprop.graph.captured import Captured, drop_dead_code, reachable
from varprop.graph.registry import Registries


@dataclass(frozen=True, eq=False)
class Pins:
    """A graph that computes the values from inputs and tensors, what they must be, and what to say if they are not."""

    captured: Captured
    expected: list[tuple[fx.Node, float, str]]

    def broken(self, tensors: Registries, inputs: list[Tensor]) -> str | None:
        """Why the graph is not good for these inputs; None if it is."""
        with torch.no_grad():
            values = self.captured.run(tensors, inputs, {node for node, *_ in self.expected})
        for node, value, reason in self.expected:
            if values[node].item() != value:
                return f"{reason} (it was captured with {value:g}, here it is {values[node].item():g})"
        return None


def read_pins(captured: Captured, pinned: list[tuple[fx.Node, str]]) -> Pins:
    """Of a graph as it was captured, the part that computes pinned values."""
    _refuse_weights(captured, pinned)
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.graph_copy(captured.graph, copies)
    graph.output([copies[node] for node, _ in pinned])
    drop_dead_code(graph)
    tensors = {copies[node]: name for node, name in captured.tensors.items()}
    part = Captured(graph, captured.structure, captured.ranges, tensors, [copies[node] for node in captured.inputs])
    texts = (text.partition(":") for _, text in pinned)
    pairs = zip(pinned, texts, strict=True)
    return Pins(part, [(copies[node], float(value), reason) for (node, _), (value, _, reason) in pairs])


def _refuse_weights(captured: Captured, pinned: list[tuple[fx.Node, str]]) -> None:
    """A value that depends on weights is another for nearly every input, and as costly as the model."""
    reached = reachable(captured.graph, [node for node, (kind, _) in captured.tensors.items() if kind == "mean"])
    for node, text in pinned:
        if node in reached:
            raise CaptureError(
                f"it cannot be captured: {text.partition(':')[2]} that depends on weights; a graph would hold for "
                "these inputs alone. Propagate a submodule or rewrite that part; transformers' experts need none with "
                'model.set_experts_implementation("grouped_mm")'
            )
