"""Graphs as JSON: one row for each op, ``[name, arguments, named arguments]``, with references to rows before it.

Reading builds a graph and runs none of it. Anything that this module would not have written is a ValueError that names
the row.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from varprop.graph import vocabulary
from varprop.graph.signature import dtype_name
from varprop.graph.transcript import dtype_of

Row = list[Any]

LONGEST, DEEPEST, MOST_ROWS = 1 << 16, 16, 1 << 20
WIDEST = 1 << 63  # of integers
FLOATS = ("inf", "-inf", "nan")
LAYOUTS = {str(layout): layout for layout in (torch.strided,)}
FORMATS = {
    str(order): order
    for order in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
}


# --- writing ---------------------------------------------------------------------------------------------


def write_rows(nodes: list[fx.Node], names: dict[fx.Node, int]) -> list[Row]:
    """A row for each op; ``names`` numbers the nodes before them, and these are added. A TypeError for what JSON or
    the vocabulary has no word for.
    """
    rows = []
    for node in nodes:
        kwargs = {key: _write(value, names) for key, value in node.kwargs.items()}
        rows.append([vocabulary.name_of(node.target), [_write(arg, names) for arg in node.args], kwargs])
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
        return {"op": vocabulary.name_of(value)}
    words: dict[type, Callable[[Any], str]] = {
        float: str,
        torch.dtype: dtype_name,
        torch.device: str,
        torch.layout: str,
        torch.memory_format: str,
    }
    if type(value) not in words:
        raise TypeError(f"{value!r} is a {type(value).__name__}, which is not stored")
    return {type(value).__name__: words[type(value)](value)}


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
        if not isinstance(rows, list) or len(rows) > MOST_ROWS:
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
        if depth > DEEPEST:
            raise ValueError("its arguments are nested too deeply")
        if value is None or type(value) in (bool, float) or (type(value) is int and -WIDEST <= value < WIDEST):
            return value
        if type(value) in (str, list) and len(value) > LONGEST:
            raise ValueError(f"{len(value)} items are too many")
        if type(value) is str:
            return value
        if type(value) is list:
            return [self.read(item, depth + 1) for item in value]
        if type(value) is not dict or len(value) != 1:
            raise ValueError(f"{str(value)[:40]!r} is no argument")
        ((kind, content),) = value.items()
        return self._read_word(kind, content, depth)

    def _read_word(self, kind: str, content: Any, depth: int) -> Any:
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
        known: dict[str, dict[str, Any]] = {
            "float": {name: float(name) for name in FLOATS},
            "layout": LAYOUTS,
            "memory_format": FORMATS,
        }
        if content not in known.get(kind, {}):
            raise ValueError(f"there is no {kind[:40]} {content[:40]!r}")
        return known[kind][content]


def _op(name: Any) -> vocabulary.Op:
    op = vocabulary.find(name) if isinstance(name, str) else None
    if op is None:
        raise ValueError("it is none of the ops that a stored graph may have")
    return op


def _check_call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Does the op take these? Names above all: they are written as they are into the code that torch makes of a graph.

    Values are torch's to check, but for two kinds: text is for ops that take text, and on sizes there is arithmetic.
    """
    if not isinstance(op, torch._ops.OpOverload):
        inspect.signature(op).bind(*args, **kwargs)
        if op in vocabulary.ON_SIZES.values() and not (isinstance(args[0], fx.Node) or isinstance(args[-1], fx.Node)):
            raise ValueError("it has no node to work on")
        values = [*args, *kwargs.values()]
        texts = [value for value in values if isinstance(value, str | list) and op in vocabulary.ON_SIZES.values()]
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
    if type(count) is not int or not 0 < count <= LONGEST:
        raise ValueError("it has a function that makes no sense")
    graph = fx.Graph()
    reader = Reader(graph, [graph.placeholder("x" if i == 0 else f"c{i}") for i in range(count)])
    reader.read_rows(content["rows"])
    graph.output(reader.read(content["result"]))
    return fx.GraphModule({}, graph)


def _title(row: Any) -> str:
    return repr(str(row[0])[:60]) if isinstance(row, list) and row else "which is no op"
