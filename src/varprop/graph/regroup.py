"""Written-out functions become the one function they are.

``x·σ(1.702x)`` is not a product of independent variables, and ``x / √(mean x² + ε)`` is a norm: rules
act on the whole, so graphs are rewritten before lifting. Only parts that variance can reach matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from varprop.graph.captured import Captured, drop_dead_code, reachable, upstream
from varprop.graph.synonyms import is_complex, use_synonyms
from varprop.rules import functions
from varprop.rules.derivative import AFFINE, DERIVATIVES

aten = torch.ops.aten

IDENTITIES = {
    aten.clone.default,
    aten._to_copy.default,
    aten.alias.default,
    aten.detach.default,
    aten.contiguous.default,
}


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


def regroup(captured: Captured, random: Iterable[fx.Node]) -> None:
    """Rewrite ``captured`` in place; ``random`` are the placeholders that carry variance."""
    reached = reachable(captured.graph, random)
    use_synonyms(captured, reached)
    _norms(captured, reached)
    _residual_linear(captured, reached)
    _chains(captured, reachable(captured.graph, random))
    _keep_marked(captured)


def _keep_marked(captured: Captured) -> None:
    """Dead code goes, but a module's input or output that has become dead is forgotten, not left dangling."""
    drop_dead_code(captured.graph)
    alive = set(captured.graph.nodes)
    for marks in (captured.module_inputs, captured.module_outputs):
        for path in [path for path, node in marks.items() if node not in alive]:
            del marks[path]


# --- norms ---------------------------------------------------------------------------------------


def _norms(captured: Captured, reached: set[fx.Node]) -> None:
    for node in captured.ops():
        if node not in reached:
            continue
        if unit := _match_unit_length(node):
            _replace(captured, node, functions.unit_length, unit)
            continue
        found = _match_rms(node)
        if found is None:
            continue
        x, dims, eps = found
        centred = _match_centred(x, dims)
        target, source = (functions.standardize, centred) if centred is not None else (functions.rms_normalize, x)
        _replace(captured, node, target, (source, tuple(dims), eps))


def _match_rms(node: fx.Node) -> tuple[fx.Node, list[int], Any] | None:
    """x · rsqrt(mean(x²) + ε)  or  x / sqrt(mean(x²) + ε), in either order, casts between ignored."""
    pairs: list[tuple[Any, Any]] = []
    if node.target is aten.mul.Tensor:
        pairs = [(node.args[0], node.args[1]), (node.args[1], node.args[0])]
    elif node.target is aten.div.Tensor:
        pairs = [(node.args[0], node.args[1])]
    root = aten.sqrt.default if node.target is aten.div.Tensor else aten.rsqrt.default
    for x, factor in pairs:
        inner = _argument(factor, root)
        if inner is None or not _is(inner, aten.add.Tensor) or not isinstance(x, fx.Node):
            continue
        for statistic, eps in (inner.args[:2], inner.args[1::-1]):
            dims = _mean_square_dims(statistic, x)
            if dims is not None:
                return x, dims, eps
    return None


def _mean_square_dims(statistic: Any, x: fx.Node) -> list[int] | None:
    """The dims over which ``statistic`` is the mean square of ``x``, if it is that."""
    node = _see_through(statistic)
    if not isinstance(node, fx.Node):
        return None
    if node.target in (aten.var.dim, aten.var.correction):
        dims = _population_variance_dims(node)
        centred = _match_centred(x, dims) if dims is not None else None
        return dims if centred is not None and _see_through(centred) is _see_through(node.args[0]) else None
    if node.target is not aten.mean.dim or not _keepdim(node, 2):
        return None
    return list(node.args[1]) if _is_square_of(node.args[0], x) else None  # type: ignore[arg-type]


def _is_square_of(value: Any, x: fx.Node) -> bool:
    square = _see_through(value)
    same = lambda value: _see_through(value) is _see_through(x)  # noqa: E731
    return isinstance(square, fx.Node) and (
        (square.target is aten.pow.Tensor_Scalar and square.args[1] == 2 and same(square.args[0]))
        or (square.target is aten.mul.Tensor and same(square.args[0]) and same(square.args[1]))
        or (square.target is aten.square.default and same(square.args[0]))
    )


def _match_unit_length(node: fx.Node) -> tuple[Any, ...] | None:
    """The arguments of ``unit_length`` if it is x/‖x‖, with an ε inside the root, beside it, or as a lower bound."""
    if node.target is not aten.div.Tensor or not isinstance(x := node.args[0], fx.Node):
        return None
    divisor, outside, least = _see_through(node.args[1]), 0.0, 0.0
    if isinstance(divisor, fx.Node) and divisor.target is aten.expand.default:
        divisor = _see_through(divisor.args[0])
    if isinstance(divisor, fx.Node) and len(divisor.args) == 2 and isinstance(number := divisor.args[1], int | float):
        if divisor.target in (aten.clamp_min.default, aten.clamp.default):
            divisor, least = _see_through(divisor.args[0]), float(number)
        elif divisor.target is aten.add.Tensor:
            divisor, outside = _see_through(divisor.args[0]), float(number)
    found = _length_dims(divisor, x)
    return None if found is None else (x, found[0], found[1], outside, least)


def _length_dims(length: Any, x: fx.Node) -> tuple[tuple[int, ...], Any] | None:
    """The dims over which ``length`` is the norm of ``x``, kept as sizes of 1, and what is added inside the root."""
    if not isinstance(length, fx.Node):
        return None
    if length.target is aten.linalg_vector_norm.default and _see_through(length.args[0]) is _see_through(x):
        order, dims, keeps = (list(length.args[1:4]) + [2, None, False][len(length.args) - 1 :])[:3]
        return (tuple(dims), 0.0) if order == 2 and dims and keeps and not length.kwargs else None  # type: ignore[arg-type]
    square, inside = _argument(length, aten.sqrt.default), 0.0
    if square is not None and _is(square, aten.add.Tensor):
        square, inside = _see_through(square.args[0]), square.args[1]
    if not isinstance(square, fx.Node) or square.target is not aten.sum.dim_IntList or not _keepdim(square, 2):
        return None
    return (tuple(square.args[1]), inside) if _is_square_of(square.args[0], x) else None  # type: ignore[arg-type]


def _population_variance_dims(node: fx.Node) -> list[int] | None:
    """The dims of a variance that divides by n and keeps them."""
    if node.target is aten.var.dim:
        divides_by_n = bool(len(node.args) > 2 and not node.args[2])
        keeps = _keepdim(node, 3)
    else:
        divides_by_n = bool(node.kwargs.get("correction") == 0)
        keeps = bool(node.kwargs.get("keepdim", False))
    return list(node.args[1]) if divides_by_n and keeps else None  # type: ignore[arg-type]


def _match_centred(x: fx.Node, dims: list[int]) -> Any:
    """The x of ``x − mean(x)`` over the same dims."""
    sub = _see_through(x)
    if not isinstance(sub, fx.Node) or not _is(sub, aten.sub.Tensor):
        return None
    mean = _see_through(sub.args[1])
    if not isinstance(mean, fx.Node) or mean.target is not aten.mean.dim or not _keepdim(mean, 2):
        return None
    same = list(mean.args[1]) == dims and _see_through(mean.args[0]) is _see_through(sub.args[0])  # type: ignore[arg-type]
    return sub.args[0] if same else None


def _is(node: fx.Node, target: Any) -> bool:
    """Is it this sum or difference, and not one with a factor on the second term?"""
    return node.target is target and bool(node.kwargs.get("alpha", 1) == 1)


def _keepdim(node: fx.Node, position: int) -> bool:
    return bool(node.args[position] if len(node.args) > position else node.kwargs.get("keepdim", False))


def _argument(node: Any, target: Any) -> fx.Node | None:
    node = _see_through(node)
    inner = _see_through(node.args[0]) if isinstance(node, fx.Node) and node.target is target else None
    return inner if isinstance(inner, fx.Node) else None


def _see_through(node: Any) -> Any:
    while isinstance(node, fx.Node) and _is_transparent(node):
        node = node.args[0]
    return node


def _is_transparent(node: fx.Node) -> bool:
    """Does the op hand on its input? A cast to integers does not."""
    return node.target in IDENTITIES and node.meta["val"].is_floating_point()


# --- residual around one linear layer ------------------------------------------------------------


def _residual_linear(captured: Captured, reached: set[fx.Node]) -> None:
    for node in captured.ops():
        if node not in reached or not _is(node, aten.add.Tensor):
            continue
        for x, branch in (node.args[:2], node.args[1::-1]):
            inner = _see_through(branch)
            if (
                isinstance(inner, fx.Node)
                and inner.target is aten.linear.default
                and inner.args[0] is x
                and x in reached
                and _shape(inner) == _shape(x)  # type: ignore[arg-type]  # else one of them is broadcast
            ):
                _replace(captured, node, functions.residual_linear, inner.args)
                break


# --- chains of elementwise ops -------------------------------------------------------------------


def _chains(captured: Captured, reached: set[fx.Node]) -> None:
    """Find nodes that are functions of a single random node by way of elementwise ops, and make each one op.

    A chain is worth it where one source meets itself again (x·σ(x)) or where non-linear ops follow each
    other; all else is left to the rules of its ops, which are exact there.
    """
    source: dict[fx.Node, fx.Node] = {}
    for node in captured.graph.nodes:
        if node not in reached or node.op != "call_function" or not _is_elementwise(node):
            continue
        origins = {source.get(arg, arg) for arg in node.all_input_nodes if arg in reached}
        if len(origins) == 1 and _shape(node) == _shape(origin := origins.pop()):
            source[node] = origin
    for node in reversed(list(source)):
        # Only where the value leaves the chain: inner nodes vanish as dead code, or stay for their other users.
        if any(source.get(user) is not source[node] for user in node.users) and _is_worth_it(node, source):
            _fuse(captured, node, source)


def _is_elementwise(node: fx.Node) -> bool:
    real = not any(map(is_complex, (node, *node.all_input_nodes)))
    return real and (node.target in DERIVATIVES or _is_transparent(node))


def _shape(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return str(tuple(value.shape)) if isinstance(value, torch.Tensor) else None  # text: comparing symbols adds guards


def _body(node: fx.Node, source: dict[fx.Node, fx.Node]) -> list[fx.Node]:
    """The nodes between a chain's source and ``node``, in graph order."""
    return upstream(node, lambda arg: source.get(arg) is source[node])


def _is_worth_it(node: fx.Node, source: dict[fx.Node, fx.Node]) -> bool:
    body = [n for n in _body(node, source) if not _is_transparent(n)]
    meets_itself = any(
        sum(_see_through(arg) is source[node] or arg in source for arg in n.args if isinstance(arg, fx.Node)) > 1
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
        handed_on: Any = member.args[0] if _is_transparent(member) else None
        values[member] = values[handed_on] if handed_on else inner.node_copy(member, values.__getitem__)
    inner.output(values[node])
    function = fx.GraphModule({}, inner)
    known = _recognise(function) if not constants else None
    if known is not None:
        _replace(captured, node, known[0], (source[node],), known[1])
    elif _is_defined_everywhere(function, constants):
        _replace(captured, node, functions.elementwise, (function, source[node], *constants))


def _recognise(function: fx.GraphModule) -> tuple[Any, dict[str, Any]] | None:
    """The function with a rule of its own that this chain is: written with ops it may be written with, and the same.

    The values confirm it, on a grid that has every number of the chain in it and goes on as far as values do. Where
    the chain overflows and the function does not, as log(1 + eˣ) does, the model has no use for either.
    """
    ops = {node.target for node in function.graph.nodes if node.op == "call_function"} - AFFINE
    numbers = [float(arg) for node in function.graph.nodes for arg in node.args if isinstance(arg, int | float)]
    near, far = torch.linspace(-12, 12, 481), torch.logspace(1, 8, 141)
    around = torch.tensor(numbers)[:, None] * torch.tensor([-1.001, -1, -0.999, 0.999, 1, 1.001])
    grid = torch.cat([near, far, -far, around.flatten()]).double()
    values = function(grid)
    for target, kwargs, vocabulary in KNOWN:
        expected = target(grid, **kwargs)
        alike = torch.isclose(values, expected, rtol=1e-6, atol=1e-7) | ~values.isfinite()
        if ops <= vocabulary and bool(alike.all()):
            return target, kwargs
    return None


def _is_defined_everywhere(function: fx.GraphModule, constants: list[fx.Node]) -> bool:
    """May it be integrated? If not, its ops keep their own rules, and the report says what that neglects."""
    if not any(node.target in SINGULAR for node in function.graph.nodes):
        return True
    wide = torch.linspace(-50, 50, 2001, dtype=torch.float64)
    return not constants and bool(function(wide).isfinite().all())


_EXPONENTIALS = {aten.exp.default, aten.reciprocal.default, aten.sigmoid.default, aten.tanh.default}
_LOGARITHMS = {aten.log.default, aten.log1p.default, aten.log_sigmoid.default, aten.softplus.default}
_KINKS = {
    aten.abs.default,
    aten.clamp.default,
    aten.clamp_max.default,
    aten.clamp_min.default,
    aten.hardtanh.default,
    aten.relu.default,
    aten.relu6.default,
}
# Functions with a rule, and the ops that may occur, beside affine ones, where they are written out.
KNOWN: tuple[tuple[Any, dict[str, Any], set[Any]], ...] = (
    (aten.gelu.default, {}, {aten.erf.default, aten.gelu.default}),
    (aten.gelu.default, {"approximate": "tanh"}, {aten.pow.Tensor_Scalar, aten.square.default, *_EXPONENTIALS}),
    (functions.quick_gelu, {}, _EXPONENTIALS),
    (aten.silu.default, {}, _EXPONENTIALS),
    (aten.sigmoid.default, {}, _EXPONENTIALS),
    (aten.tanh.default, {}, _EXPONENTIALS),
    (aten.relu.default, {}, _KINKS),
    (aten.softplus.default, {}, _LOGARITHMS | _EXPONENTIALS | _KINKS),
    (aten.mish.default, {}, _LOGARITHMS | _EXPONENTIALS),
    (aten.elu.default, {}, {aten.elu.default, aten.exp.default, *_KINKS}),
    (aten.hardswish.default, {}, {aten.hardsigmoid.default, *_KINKS}),
    (aten.hardsigmoid.default, {}, _KINKS),
    (aten.abs.default, {}, _KINKS),
)


def _replace(captured: Captured, node: fx.Node, target: Any, args: Any, kwargs: dict[str, Any] | None = None) -> None:
    """Put ``target(*args)`` in the place of ``node``; its old inputs go when nothing else uses them."""
    graph = captured.graph
    with graph.inserting_before(node):
        new = graph.call_function(target, tuple(args), kwargs or {})
        new.meta = dict(node.meta)
        source = next(arg for arg in args if isinstance(arg, fx.Node))
        if source.meta["val"].dtype != node.meta["val"].dtype:  # casts inside a chain were seen through
            new = graph.call_function(aten._to_copy.default, (new,), {"dtype": node.meta["val"].dtype})
            new.meta = dict(node.meta)
    captured.exchange(node, new)
