"""Nodes of graphs as JSON: one row for each op, ``[name, arguments, named arguments]``, with references to rows before.

The ops are a whitelist of pure functions, so that a file can ask for nothing else. Reading builds a graph and runs none
of it. Anything that this module would not have written is a ValueError that names the row.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from varprop.graph.call_json import dtype_of
from varprop.graph.signature import dtype_name
from varprop.rules import CVP, functions
from varprop.rules.ruleset import op_name

Op = Callable[..., Any]
Row = list[Any]

MAX_LENGTH, MAX_DEPTH, MAX_ROWS = 1 << 16, 16, 1 << 20
MAX_INT = 1 << 63  # of integers
SPELLED: dict[str, dict[str, Any]] = {
    "float": {name: float(name) for name in ("inf", "-inf", "nan")},
    "layout": {str(torch.strided): torch.strided},
    "memory_format": {
        str(order): order
        for order in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
    },
}
"""Values that are written by their names, by type."""


# --- ops -------------------------------------------------------------------------------------------------

MORE_ATEN = {
    *("aten._grouped_mm.default", "aten.arange.default", "aten.arange.start", "aten.empty_like.default"),
    *("aten.expand_as.default", "aten.eye.default", "aten.eye.m", "aten.lift_fresh_copy.default"),
    *("aten.linspace.default", "aten.movedim.int", "aten.narrow.default", "aten.new_ones.default"),
    *("aten.new_zeros.default", "aten.nonzero_static.default", "aten.ones.default", "aten.sym_size.int"),
    *("aten.zeros.default",),
}
"""Of torch's ops, beside those that have a rule, those of its core set and those that act on each entry alone."""
FUNCTIONS: dict[str, Op] = {
    f"varprop.{name}": function
    for name, function in inspect.getmembers(functions, inspect.isfunction)
    if function.__module__ == functions.__name__
}
ON_SIZES: dict[str, Op] = {
    **{f"operator.{name}": getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "truediv", "mod")},
    **{f"operator.{name}": getattr(operator, name) for name in ("neg", "pow", "getitem", "and_", "or_")},
    **{f"operator.{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"torch.{name}": getattr(torch, name) for name in ("sym_max", "sym_min", "sym_float", "sym_int", "sym_not")},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
}
_NAMES = {op: name for name, op in (FUNCTIONS | ON_SIZES).items()}


def _name_of(op: Any) -> str:
    """The name of an op of the whitelist; a TypeError for any other."""
    name = str(op) if isinstance(op, torch._ops.OpOverload) else _NAMES.get(op, "")
    if not name or _find(name) is not op:
        raise TypeError(f"{op_name(op)} is none of the ops that are stored")
    return name


@functools.cache
def _find(name: str) -> Op | None:
    """The op of the whitelist that has this name. None writes to what it is given; of those without a rule, none draws
    random numbers.
    """
    known = FUNCTIONS.get(name) or ON_SIZES.get(name)
    if known is not None:
        return known
    found = re.fullmatch(r"aten\.(\w+)\.(\w+)", name)
    packet = getattr(torch.ops.aten, found[1], None) if found else None
    op = getattr(packet, found[2], None) if found and isinstance(packet, torch._ops.OpOverloadPacket) else None
    if not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable:
        return None
    plain = name in MORE_ATEN or not {torch.Tag.core, torch.Tag.pointwise}.isdisjoint(op.tags)
    return op if op in CVP or (plain and torch.Tag.nondeterministic_seeded not in op.tags) else None


# --- writing ---------------------------------------------------------------------------------------------


def write_rows(nodes: list[fx.Node], names: dict[fx.Node, int]) -> list[Row]:
    """A row for each op; ``names`` numbers the nodes before them, and these are added. A TypeError for what JSON or
    the whitelist does not have.
    """
    rows = []
    for node in nodes:
        kwargs = {key: _write(value, names) for key, value in node.kwargs.items()}
        rows.append([_name_of(node.target), [_write(arg, names) for arg in node.args], kwargs])
        names[node] = len(names)
    return rows


def _write(value: Any, names: dict[fx.Node, int]) -> Any:
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, fx.Node):
        return {"node": names[value]}
    if isinstance(value, tuple):
        return {"tuple": [_write(item, names) for item in value]}
    if isinstance(value, list):
        return [_write(item, names) for item in value]
    if isinstance(value, fx.GraphModule):
        return {"function": _write_function(value.graph)}
    if isinstance(value, torch._ops.OpOverload):
        return {"op": _name_of(value)}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    kind = type(value).__name__
    if kind not in ("device", *SPELLED):
        raise TypeError(f"{value!r} is a {kind}, which is not stored")
    return {kind: str(value)}


def _write_function(graph: fx.Graph) -> dict[str, Any]:
    """A function of its own, which an op is given."""
    inputs = graph.find_nodes(op="placeholder")
    names = {node: index for index, node in enumerate(inputs)}
    ops = [node for node in graph.nodes if node.op == "call_function"]
    if len(inputs) + len(ops) + 1 != len(graph.nodes):
        raise TypeError("a function that has tensors of its own is not stored")
    rows = write_rows(ops, names)
    return {"inputs": len(inputs), "rows": rows, "result": _write(graph.output_node().args[0], names)}


# --- reading ---------------------------------------------------------------------------------------------


class Reader:
    """Appends what rows say to a graph. ``nodes`` are those that rows may refer to; devices are replaced by one."""

    def __init__(self, graph: fx.Graph, nodes: list[fx.Node], device: torch.device | None = None) -> None:
        self.graph, self.nodes, self.device = graph, nodes, device

    def read_rows(self, rows: Any) -> list[fx.Node]:
        """The new nodes."""
        if not isinstance(rows, list) or len(rows) > MAX_ROWS:
            raise ValueError("its rows are no list, or too many")
        first = len(self.nodes)
        for index, row in enumerate(rows):
            try:
                self.nodes.append(self._read_row(row))
            except (ValueError, TypeError, KeyError, RuntimeError) as error:
                raise ValueError(f"row {index}, {_title(row)}: {error}") from error
        return self.nodes[first:]

    def _read_row(self, row: Any) -> fx.Node:
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[1], list) or not isinstance(row[2], dict):
            raise ValueError("it is no op with its arguments")
        args, kwargs = tuple(self.read(arg) for arg in row[1]), {key: self.read(arg) for key, arg in row[2].items()}
        op = _op(row[0])
        _check_call(op, args, kwargs)
        return self.graph.call_function(op, args, kwargs)

    def read(self, value: Any, depth: int = 0) -> Any:
        """One argument."""
        if depth > MAX_DEPTH:
            raise ValueError("its arguments are nested too deeply")
        if value is None or type(value) in (bool, float) or (type(value) is int and -MAX_INT <= value < MAX_INT):
            return value
        if type(value) in (str, list) and len(value) > MAX_LENGTH:
            raise ValueError(f"{len(value)} items are too many")
        if type(value) is str:
            return value
        if type(value) is list:
            return [self.read(item, depth + 1) for item in value]
        if type(value) is not dict or len(value) != 1:
            raise ValueError(f"{str(value)[:40]!r} is no argument")
        ((kind, content),) = value.items()
        return self._read_tagged(kind, content, depth)

    def _read_tagged(self, kind: str, content: Any, depth: int) -> Any:
        if kind == "tuple" and type(content) is list:
            return tuple(self.read(content, depth + 1))
        if kind == "function" and type(content) is dict:
            return _read_function(content)
        if kind == "node":
            if type(content) is not int or not 0 <= content < len(self.nodes):
                raise ValueError(f"it refers to {content!r}, which is not before it")
            return self.nodes[content]
        if type(content) is not str:
            raise ValueError(f"a {kind} is not {str(content)[:40]!r}")
        if kind == "device":
            return self.device or torch.device(content)
        if kind == "op":
            return _op(content)
        if kind == "dtype":
            return dtype_of(content)
        if content not in SPELLED.get(kind, {}):
            raise ValueError(f"there is no {kind[:40]} {content[:40]!r}")
        return SPELLED[kind][content]


def _op(name: Any) -> Op:
    op = _find(name) if isinstance(name, str) else None
    if op is None:
        raise ValueError("it is none of the ops that a stored graph may have")
    return op


def _check_call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Does the op take these? Names above all: they are written as they are into the code that torch makes of a graph.

    Values are torch's to check, but for two kinds: text is for ops that take text, and on sizes there is arithmetic.
    """
    texts = []
    if not isinstance(op, torch._ops.OpOverload):
        inspect.signature(op).bind(*args, **kwargs)
        if op in ON_SIZES.values():
            if not (isinstance(args[0], fx.Node) or isinstance(args[-1], fx.Node)):
                raise ValueError("it has no node to work on")
            texts = [value for value in (*args, *kwargs.values()) if isinstance(value, str | list)]
    else:
        taken = {argument.name: argument for argument in op._schema.arguments}
        given = dict(zip((name for name, argument in taken.items() if not argument.kwarg_only), args, strict=False))
        missing = [name for name, argument in taken.items() if not argument.has_default_value()]
        if len(given) < len(args) or {*given} & {*kwargs} or not {*missing} <= {*given, *kwargs} <= {*taken}:
            raise ValueError("these are not its arguments")
        given |= kwargs
        texts = [x for name, x in given.items() if isinstance(x, str) and "str" not in str(taken[name].type)]
    if texts:
        raise ValueError(f"it takes no {texts[0]!r:.40}")


def _read_function(content: dict[str, Any]) -> fx.GraphModule:
    count = content["inputs"]
    if type(count) is not int or not 0 < count <= MAX_LENGTH:
        raise ValueError("it has a function that makes no sense")
    graph = fx.Graph()
    reader = Reader(graph, [graph.placeholder("x" if i == 0 else f"c{i}") for i in range(count)])
    reader.read_rows(content["rows"])
    graph.output(reader.read(content["result"]))
    return fx.GraphModule({}, graph)


def _title(row: Any) -> str:
    return repr(str(row[0])[:60]) if isinstance(row, list) and row else "which is no op"
