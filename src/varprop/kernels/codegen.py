"""A graph of pointwise ops written as one Triton kernel.

Rules are the only place where formulas stand; what is emitted is what was traced of them, forward or backward. Where
a rule changes its formula with the width of the Gaussian (``where(v < limit, narrow, wide)``), a block whose entries
are all narrow runs the narrow formula alone.
"""

from __future__ import annotations

import hashlib
import linecache
import math
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from varprop.kernels.triton_ops import FLOATS, SAME, WRITE

aten = torch.ops.aten

BLOCK, WARPS = 512, 4  # entries of a program, and warps
HOMOGENEOUS = {aten.div.Tensor, aten.mul.Scalar, aten.neg.default}  # in their first argument
OPTIONS = {"alpha", "approximate"}  # of ops; other keywords are of dtypes and devices, which are one in a kernel


def conditions(body: fx.GraphModule) -> list[fx.Node]:
    """Where the graph asks whether an entry is narrow."""
    return [
        node
        for node in body.graph.find_nodes(op="call_function", target=aten.lt.Scalar)
        if all(user.target is aten.where.self and user.args[0] is node for user in node.users)
    ]


def asked(body: fx.GraphModule) -> fx.GraphModule | None:
    """The conditions as a graph of its own; None if there are none."""
    found = conditions(body)
    return _copied(body, lambda copies: tuple(copies[node] for node in found)) if found else None


def limit_of(body: fx.GraphModule) -> float | None:
    """The variance below which every condition holds; None if there is none, or they ask for more than the variance."""
    var, found = body.graph.find_nodes(op="placeholder")[1], conditions(body)

    def compared(node: Any) -> Any:
        while node.target in SAME or node.target is aten._to_copy.default:
            node = node.args[0]
        return node

    limits: list[Any] = [node.args[1] for node in found if compared(node.args[0]) is var]
    return min(limits) if found and len(limits) == len(found) else None


def narrowed(body: fx.GraphModule) -> fx.GraphModule:
    """What is left of the graph where every condition holds."""

    def results(copies: dict[fx.Node, fx.Node]) -> Any:
        for node in conditions(body):
            for user in node.users:
                copies[user].replace_all_uses_with(copies[user].args[1])  # type: ignore[arg-type]
                copies[user] = copies[user].args[1]  # type: ignore[assignment]
        return fx.map_arg(body.graph.output_node().args[0], copies.__getitem__)

    narrow = _copied(body, results)
    _drop_zeros(narrow.graph)
    narrow.recompile()
    return narrow


def _drop_zeros(graph: fx.Graph) -> None:
    """In a derivative, the gradient of the formula that is not used is 0: all that is computed from it goes."""
    zeros: set[Any] = set()
    for node in graph.nodes:
        is_zero = [arg in zeros for arg in node.args[:3]] + [False] * 3
        if (
            node.target is aten.zeros_like.default
            or (node.target is aten.scalar_tensor.default and node.args[0] == 0)
            or (node.target is aten.mul.Tensor and any(is_zero))
            or (node.target is aten.where.self and is_zero[1] and is_zero[2])
            or ((node.target in HOMOGENEOUS or node.target in SAME) and is_zero[0])
        ):
            zeros.add(node)
        elif node.target is aten.add.Tensor and any(is_zero) and not node.kwargs:
            other = node.args[is_zero[0]]
            if isinstance(other, fx.Node):
                node.replace_all_uses_with(other)
    graph.eliminate_dead_code()


def _copied(body: fx.GraphModule, results: Callable[[dict[fx.Node, fx.Node]], Any]) -> fx.GraphModule:
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.graph_copy(body.graph, copies)
    graph.output(results(copies))
    graph.eliminate_dead_code()
    return fx.GraphModule(body, graph)


def write(body: fx.GraphModule, arguments: Iterable[str], prefix: str) -> tuple[list[str], list[str]]:
    """The statements of a graph, in float32, and the names of its results. KeyError for an op that is not known."""
    names: dict[fx.Node, str] = {}
    lines: list[str] = []
    given = iter(arguments)
    for node in body.graph.nodes:
        if node.op == "placeholder":
            names[node] = next(given)
        elif node.op == "output":
            return lines, [names[result] for result in node.args[0]]
        elif node.target in SAME or _is_cast(node):
            names[node] = names[node.args[0]]
        else:
            options = {key: value for key, value in node.kwargs.items() if key in OPTIONS}
            args = fx.map_arg(node.args, names.__getitem__)
            names[node] = f"{prefix}{len(lines)}"
            lines.append(f"{names[node]} = {WRITE[node.target](*map(_literal, args), **options)}")
    raise KeyError("output")


def _is_cast(node: fx.Node) -> bool:
    if node.target is not aten._to_copy.default:
        return False
    if node.kwargs.get("dtype") not in FLOATS or set(node.kwargs) > {"dtype"}:
        raise KeyError(node.kwargs)  # a rule that needs float64 stays with its reference
    return bool(node.args[0].meta["val"].is_floating_point())  # type: ignore[union-attr]


def _literal(value: Any) -> Any:
    return f"float('{value}')" if isinstance(value, float) and math.isinf(value) else value


def _statements(body: fx.GraphModule, values: list[str], smallest: str) -> list[str]:
    """From ``values`` to y0 and y1, by the short way where a block is narrow."""
    lines = _results(body, values, "w")
    test = asked(body)
    if test is None:
        return lines
    questions, answers = write(test, values, "c")
    return [
        *questions,
        f"narrow = {' & '.join(answers)}",
        f"if {smallest.format('narrow.to(tl.int32)')} == 1:",
        *(f"    {line}" for line in _results(narrowed(body), values, "n")),
        "else:",
        *(f"    {line}" for line in lines),
    ]


def _results(body: fx.GraphModule, values: list[str], prefix: str) -> list[str]:
    """Down to y0 and y1."""
    lines, names = write(body, values, prefix)
    return lines + [f"y{k} = {name}" for k, name in enumerate(names)]


def _kernel(pointers: Iterable[str], sizes: str, steps: Iterable[str]) -> str:
    head = f"@triton.jit\ndef kernel({', '.join(pointers)}, {sizes}: tl.constexpr):\n"
    return head + textwrap.indent("\n".join(steps), "    ") + "\n"


def emit(body: fx.GraphModule) -> str:
    """The source of ``kernel``: pointers to the inputs, to log α, which scales the second, and two results; a size."""
    inputs = [node.name for node in body.graph.find_nodes(op="placeholder")]
    values = [f"x{k}" for k in range(len(inputs))]
    steps = [
        "at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        "inside = at < size",
        *(f"{x} = tl.load({x}_ptr + at, mask=inside, other=0.0).to(tl.float32)" for x in values),
        "alpha = tl.exp(tl.load(alpha_ptr).to(tl.float32))",
        "x1 = x1 * alpha",
        *_statements(body, values, "tl.min({}, 0)"),
        *(f"tl.store(y{k}_ptr + at, y{k}.to(y{k}_ptr.dtype.element_ty), mask=inside)" for k in range(2)),
    ]
    return _kernel([*(f"{x}_ptr" for x in values), "alpha_ptr", "y0_ptr", "y1_ptr"], "size, BLOCK", steps)


def emit_region(body: fx.GraphModule, kinds: tuple[str, ...], widths: tuple[int, ...]) -> str:
    """The source of ``kernel`` for tensors of these kinds: read entry by entry, a vector along one dimension, of
    ``channels`` entries that are ``inner`` apart, a row over all the others, or a number.

    As many of the results as each of ``widths`` says lie side by side in one tensor, along that dimension.
    """
    order = sorted(range(len(kinds)), key=lambda k: kinds[k] != "full")  # the first is a full one
    names = [f"x{order.index(k)}" for k in range(len(kinds))]
    places = [(group, k, width) for group, width in enumerate(widths) for k in range(width)]
    index = {
        "full": "at",
        "vector": "(at // inner) % channels",
        "row": "(at // (inner * channels) * inner + at % inner)",
    }
    place = {kind: f" + {text}, mask=inside, other=0.0" for kind, text in index.items()}
    steps = [
        "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        "inside = at < size",
        *(f"{x} = tl.load({x}_ptr{place.get(kind, '')}).to(tl.float32)" for x, kind in zip(names, kinds, strict=True)),
        *_statements(body, names, "tl.min({}, 0)"),
        *(
            f"tl.store(z{group}_ptr + {_beside(k, width)}, y{index}.to(z{group}_ptr.dtype.element_ty), mask=inside)"
            for index, (group, k, width) in enumerate(places)
        ),
    ]
    results = [f"z{group}" for group in range(len(widths))]
    return _kernel([f"{x}_ptr" for x in (*names, *results)], "size, inner, channels, BLOCK", steps)


def _beside(k: int, width: int) -> str:
    """Where an entry goes in a tensor of so many side by side, of which it is in the k-th."""
    if width == 1:
        return "at"
    return f"(at + (at // (inner * channels) * {width - 1} + {k}) * (inner * channels))"


def emit_tokens(body: fx.GraphModule, terms: int, by_var: int, by_square: int, ones: bool) -> str:
    """The source of ``kernel`` for variances that are ``terms`` products of a number for each row and a vector.

    Of the resulting variance only ``by_var`` sums with given vectors leave it, and of the squared mean ``by_square``;
    none of either: the variance itself.
    """
    sums = [f"y1 * {_vector('by_var', k)}" for k in range(by_var)]
    sums += [f"y0 * y0 * {_vector('by_square', k)}" for k in range(by_square)]
    count = len(sums) + ones
    products = [f"t{k} * {_vector('vectors', k)}" for k in range(terms)]

    def loop(statements: list[str]) -> list[str]:
        lines = [
            "column = start + tl.arange(0, BLOCK)[None, :]",
            "kept = column < size",
            "inside = live & kept",
            "at = row * size + column",
            "x0 = tl.load(x0_ptr + at, mask=inside, other=0.0).to(tl.float32)",
            f"x1 = {' + '.join(products)}",
            *statements,
            "tl.store(y0_ptr + at, y0.to(y0_ptr.dtype.element_ty), mask=inside)",
            *(f"s{k} += {text}" for k, text in enumerate(sums)),
            *([] if sums else ["tl.store(y1_ptr + at, y1.to(y1_ptr.dtype.element_ty), mask=inside)"]),
        ]
        return ["for start in range(0, size, BLOCK):", *(f"    {line}" for line in lines)]

    steps = [
        "row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]",
        "live = row < rows",
        "alpha = tl.exp(tl.load(alpha_ptr).to(tl.float32))",
        *(
            f"t{k} = alpha * tl.load(x1_ptr + row * {terms} + {k}, mask=live, other=0.0).to(tl.float32)"
            for k in range(terms)
        ),
        *(f"s{k} = tl.zeros([ROWS, BLOCK], tl.float32)" for k in range(len(sums))),
        *_by_peaks(body, terms, loop),
        *(f"tl.store(y1_ptr + row * {count} + {k}, tl.sum(s{k}, 1)[:, None], mask=live)" for k in range(len(sums))),
        *([f"tl.store(y1_ptr + row * {count} + {count - 1}, 1.0 + tl.zeros_like(t0), mask=live)"] if ones else []),
    ]
    names = "x0", "x1", "alpha", "vectors", "peaks", "by_var", "by_square", "y0", "y1"
    return _kernel([f"{name}_ptr" for name in names], "rows, size, ROWS: tl.constexpr, BLOCK", steps)


def _by_peaks(body: fx.GraphModule, terms: int, loop: Callable[[list[str]], list[str]]) -> list[str]:
    """A loop without questions where the largest entries of the vectors tell that no variance is wide."""
    limit, steps = limit_of(body), loop(_statements(body, ["x0", "x1"], "tl.min(tl.min({}, 1), 0)"))
    if limit is None:
        return steps
    short = loop(_results(narrowed(body), ["x0", "x1"], "n"))
    widest = " + ".join(f"t{k} * tl.load(peaks_ptr + {k}).to(tl.float32)" for k in range(terms))
    test = f"if tl.max(tl.max({widest}, 1), 0) < {limit}:"
    return [test, *(f"    {line}" for line in short), "else:", *(f"    {line}" for line in steps)]


def _vector(name: str, k: int) -> str:
    return f"tl.load({name}_ptr + {k} * size + column, mask=kept, other=0.0).to(tl.float32)"


def build(source: str) -> Any:
    """The kernel of a source that ``emit`` wrote. Triton reads it through ``linecache``, as of any function."""
    import triton
    import triton.language as tl

    name = f"<varprop kernel {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"triton": triton, "tl": tl, "__name__": "varprop.kernels.emitted"}
    exec(compile(source, name, "exec"), scope)  # noqa: S102 (written above, from ops of the table and numbers)
    return scope["kernel"]
