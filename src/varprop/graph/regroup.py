"""Written-out functions become the one function they are.

``x·σ(1.702x)`` is not a product of independent variables, and ``x / √(mean x² + ε)`` is a norm: rules
act on the whole, so graphs are rewritten before lifting. Only parts that variance can reach matter.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from varprop.graph.captured import Captured, drop_dead_code, reachable
from varprop.graph.chains import regroup_chains
from varprop.graph.rewriting import is_plain, replace, see_through, shape_of
from varprop.graph.synonyms import use_synonyms
from varprop.graph.written_norms import regroup_norms
from varprop.rules import functions

aten = torch.ops.aten


def regroup(captured: Captured, random: Iterable[fx.Node]) -> None:
    """Rewrite ``captured`` in place; ``random`` are the placeholders that carry variance."""
    reached = reachable(captured.graph, random)
    use_synonyms(captured, reached)
    regroup_norms(captured, reached)
    _residual_linear(captured, reached)
    regroup_chains(captured, reachable(captured.graph, random))
    _keep_marked(captured)


def _keep_marked(captured: Captured) -> None:
    """Dead code goes, but a module's input or output that has become dead is forgotten, not left dangling."""
    drop_dead_code(captured.graph)
    alive = set(captured.graph.nodes)
    for marks in (captured.module_inputs, captured.module_outputs):
        for path in [path for path, node in marks.items() if node not in alive]:
            del marks[path]


def _residual_linear(captured: Captured, reached: set[fx.Node]) -> None:
    """A residual around one linear layer: x + (W x + b)."""
    for node in captured.ops():
        if node not in reached or not is_plain(node, aten.add.Tensor):
            continue
        for x, branch in (node.args[:2], node.args[1::-1]):
            inner = see_through(branch)
            if (
                isinstance(inner, fx.Node)
                and inner.target is aten.linear.default
                and inner.args[0] is x
                and x in reached
                and shape_of(inner) == shape_of(x)  # type: ignore[arg-type]  # else one of them is broadcast
            ):
                replace(captured, node, functions.residual_linear, inner.args)
                break
