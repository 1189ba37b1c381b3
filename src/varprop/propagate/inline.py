"""Pointwise rules are traced once on a tiny tensor and copied into the flat graph wherever they occur.

The moments of an activation are a hundred elementary ops. Tracing them with symbolic sizes, anew for
every layer, would take most of the time a large model needs to be lifted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from varprop.capture.export import strip_assertions
from varprop.moments import Moments
from varprop.rules.ruleset import Rule

aten = torch.ops.aten

SHAPE_FREE = {
    aten._to_copy.default,
    aten.clone.default,
    aten.full_like.default,
    aten.ones_like.default,
    aten.scalar_tensor.default,
    aten.to.dtype,
    aten.zeros_like.default,
}


@torch.library.custom_op("varprop::pointwise", mutates_args=())
def pointwise(mean: Tensor, var: Tensor, key: str) -> tuple[Tensor, Tensor]:
    """Stands for a traced rule until ``inline`` puts its ops in its place."""
    raise RuntimeError("a placeholder of tracing was run")


@pointwise.register_fake
def _(mean: Tensor, var: Tensor, key: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(mean), torch.empty_like(var)


class _Body(nn.Module):
    def __init__(self, function: Callable[[Moments], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.function(Moments(mean, var)))


@dataclass
class Bodies:
    """The traced bodies of the pointwise rules of a graph."""

    graphs: dict[str, fx.Graph | None] = field(default_factory=dict)
    keys: dict[fx.Node, str] = field(default_factory=dict)

    def prepare(self, node: fx.Node, rule: Rule, device: torch.device) -> None:
        """Trace the rule for ``node``, if it is a pointwise function of one tensor and was not met before."""
        x, *rest = node.args
        if not isinstance(x, fx.Node) or len(node.all_input_nodes) != 1:
            return
        dtype = x.meta["val"].dtype
        key = f"{node.target} {rest} {sorted(node.kwargs.items())} {dtype}"
        if key not in self.graphs:
            example = torch.full((2, 3), 0.5, dtype=dtype, device=device)
            self.graphs[key] = _trace(lambda x: rule(x, *rest, **node.kwargs), example)
        if self.graphs[key] is not None:
            self.keys[node] = key

    def apply(self, node: fx.Node, x: Moments) -> Moments:
        return Moments(*torch.ops.varprop.pointwise(x.mean, x.var, self.keys[node]))

    def inline(self, graph: fx.Graph) -> None:
        """Put the ops of each body in the place of the node that stands for it."""
        for node in graph.find_nodes(op="call_function", target=torch.ops.varprop.pointwise.default):
            body = self.graphs[node.args[2]]
            assert body is not None
            values = dict(zip(body.find_nodes(op="placeholder"), node.args[:2], strict=True))
            with graph.inserting_before(node):
                results: Any = graph.graph_copy(body, values)
            for user in list(node.users):  # both are items of the pair
                user.replace_all_uses_with(results[user.args[1]])
                graph.erase_node(user)
            graph.erase_node(node)


def _trace(function: Callable[[Moments], Any], example: Tensor) -> fx.Graph | None:
    """The graph of a function of moments; None unless every op of it is pointwise, so that it holds for any shape."""
    try:
        program = torch.export.export(_Body(function), (example, example.clone()), strict=False)
    except Exception:  # noqa: BLE001 (a rule for tensors of another rank, or one that fails: the walk will tell)
        return None
    graph = program.graph
    strip_assertions(graph)
    ops = [node.target for node in graph.nodes if node.op == "call_function"]
    shape_free = all(op in SHAPE_FREE or torch.Tag.pointwise in getattr(op, "tags", ()) for op in ops)
    only_inputs = len(graph.find_nodes(op="placeholder")) == 2
    return graph if shape_free and only_inputs else None
