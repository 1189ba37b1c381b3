"""Chains of elementwise ops that are functions of one random node, as the one function they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from varprop.graph.canonicalize import is_complex
from varprop.graph.captured import Captured, is_transparent, see_through, shape_of, upstream
from varprop.rules import functions
from varprop.rules.derivative import AFFINE, DERIVATIVES

aten = torch.ops.aten

# Not finite everywhere: a Gaussian may reach where they are not defined.
SINGULAR = {
    aten.acos.default,
    aten.acosh.default,
    aten.digamma.default,
    aten.lgamma.default,
    aten.asin.default,
    aten.atanh.default,
    aten.erfinv.default,
    aten.log10.default,
    aten.log2.default,
    aten.logit.default,
    aten.tan.default,
    aten.div.Tensor,
    aten.log.default,
    aten.log1p.default,
    aten.pow.Tensor_Scalar,
    aten.reciprocal.default,
    aten.rsqrt.default,
    aten.sqrt.default,
}

# Functions that have a rule of their own, which models write out.
KNOWN: tuple[tuple[Any, dict[str, Any]], ...] = (
    (aten.gelu.default, {}),
    (aten.gelu.default, {"approximate": "tanh"}),
    (functions.quick_gelu, {}),
    (aten.silu.default, {}),
    (aten.sigmoid.default, {}),
    (aten.tanh.default, {}),
    (aten.relu.default, {}),
    (aten.softplus.default, {}),
    (aten.mish.default, {}),
    (aten.elu.default, {}),
    (aten.hardswish.default, {}),
    (aten.hardsigmoid.default, {}),
    (aten.abs.default, {}),
)


def regroup_chains(captured: Captured, reached: set[fx.Node]) -> None:
    """Find nodes that are functions of a single random node by way of elementwise ops, and make each one op.

    A chain is worth it where one source meets itself again (x·σ(x)) or where non-linear ops follow each
    other; all else is left to the rules of its ops, which are exact there.
    """
    source: dict[fx.Node, fx.Node] = {}
    for node in captured.graph.nodes:
        if node not in reached or node.op != "call_function" or not _is_elementwise(node):
            continue
        origins = {source.get(arg, arg) for arg in node.all_input_nodes if arg in reached}
        if len(origins) == 1 and shape_of(node) == shape_of(origin := origins.pop()):
            source[node] = origin
    for node in reversed(list(source)):
        # Only where the value leaves the chain: inner nodes vanish as dead code, or stay for their other users.
        if any(source.get(user) is not source[node] for user in node.users) and _is_worth_it(node, source):
            _fuse(captured, node, source)


def _is_elementwise(node: fx.Node) -> bool:
    real = not any(map(is_complex, (node, *node.all_input_nodes)))
    return real and (node.target in DERIVATIVES or is_transparent(node))


def _body(node: fx.Node, source: dict[fx.Node, fx.Node]) -> list[fx.Node]:
    """The nodes between a chain's source and ``node``, in graph order."""
    return upstream(node, lambda arg: source.get(arg) is source[node])


def _is_worth_it(node: fx.Node, source: dict[fx.Node, fx.Node]) -> bool:
    body = [n for n in _body(node, source) if not is_transparent(n)]
    meets_itself = any(
        sum(see_through(arg) is source[node] or arg in source for arg in n.args if isinstance(arg, fx.Node)) > 1
        for n in body
    )
    return meets_itself or sum(not _is_affine(n, source) for n in body) > 1


def _is_affine(node: fx.Node, source: dict[fx.Node, fx.Node]) -> bool:
    """Is this op affine in the one argument that is random?"""
    divisor = node.args[1] if node.target is aten.div.Tensor else None
    return node.target in AFFINE and not (divisor in source or divisor is source[node])


def _fuse(captured: Captured, node: fx.Node, source: dict[fx.Node, fx.Node]) -> None:
    body = _body(node, source)
    inner = fx.Graph()
    values: dict[fx.Node, fx.Node] = {source[node]: inner.placeholder("x")}
    constants: list[fx.Node] = []
    for member in body:
        for arg in member.all_input_nodes:
            if arg not in values:
                constants.append(arg)
                values[arg] = inner.placeholder(f"c{len(constants)}")
        handed_on: Any = member.args[0] if is_transparent(member) else None
        values[member] = values[handed_on] if handed_on else inner.node_copy(member, values.__getitem__)
    inner.output(values[node])
    function = fx.GraphModule({}, inner)
    known = _recognise(function) if not constants else None
    if known is not None:
        captured.replace(node, known[0], (source[node],), known[1])
    elif _is_defined_everywhere(function, constants):
        captured.replace(node, functions.elementwise, (function, source[node], *constants))


def _recognise(function: fx.GraphModule) -> tuple[Any, dict[str, Any]] | None:
    """The function with a rule of its own that this chain is, by its values.

    They are compared on a grid that has every number of the chain in it and goes on as far as values do. Where
    the chain overflows and the function does not, as log(1 + eˣ) does, the model has no use for either.
    """
    numbers = [float(arg) for node in function.graph.nodes for arg in node.args if isinstance(arg, int | float)]
    near, far = torch.linspace(-12, 12, 481), torch.logspace(1, 8, 141)
    around = torch.tensor(numbers)[:, None] * torch.tensor([-1.001, -1, -0.999, 0.999, 1, 1.001])
    grid = torch.cat([near, far, -far, around.flatten()]).double()
    values = function(grid)
    overflows = ~values.isfinite() & (grid.abs() > near.max())
    for target, kwargs in KNOWN:
        alike = torch.isclose(values, target(grid, **kwargs), rtol=1e-6, atol=1e-7) | overflows
        if bool(alike.all()):
            return target, kwargs
    return None


def _is_defined_everywhere(function: fx.GraphModule, constants: list[fx.Node]) -> bool:
    """May it be integrated? If not, its ops keep their own rules, and the report says what that neglects."""
    if not any(node.target in SINGULAR for node in function.graph.nodes):
        return True
    wide = torch.linspace(-50, 50, 2001, dtype=torch.float64)
    return not constants and bool(function(wide).isfinite().all())
