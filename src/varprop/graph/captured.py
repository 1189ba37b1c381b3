"""A captured graph, and what can be asked of it: where an op stands, what it depends on, what it computes."""

from __future__ import annotations

import hashlib
import math
import re
import sys
import traceback
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher

from varprop.graph.registry import Registries, Registry
from varprop.graph.signature import Size, Structure, random_inputs
from varprop.rules.ruleset import op_name

aten = torch.ops.aten

PACKAGE = str(Path(__file__).parents[1])
IDENTITIES = {
    aten.clone.default,
    aten._to_copy.default,
    aten.alias.default,
    aten.detach.default,
    aten.contiguous.default,
}


@dataclass
class Captured:
    """The graph of one call. Its placeholders are named tensors of the model and inputs."""

    graph: fx.Graph
    structure: Structure
    ranges: dict[str, tuple[int, float]]
    tensors: dict[fx.Node, tuple[str, str]] = field(default_factory=dict)
    """The registry and the path of each tensor of the model, ``mean`` for its parameters."""
    inputs: list[fx.Node] = field(default_factory=list)
    module_inputs: dict[str, fx.Node] = field(default_factory=dict)
    module_outputs: dict[str, fx.Node] = field(default_factory=dict)
    guards: Guards | None = None
    ending: str = ""
    """What the model does to ``output`` and links expect to be undone: ``softmax`` or ``log_softmax``."""

    @property
    def output(self) -> fx.Node:
        return self.graph.output_node().args[0][0]  # type: ignore[index,return-value]

    def ops(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "call_function"]

    def exchange(self, node: fx.Node, new: fx.Node) -> None:
        """``new`` for ``node``, wherever it is used or annotated."""
        node.replace_all_uses_with(new)
        for nodes in (self.module_inputs, self.module_outputs):
            nodes.update({path: new for path, annotated in nodes.items() if annotated is node})

    def replace(self, node: fx.Node, target: Any, args: Any, kwargs: dict[str, Any] | None = None) -> None:
        """Put ``target(*args)`` in the place of ``node``; its old inputs go when nothing else uses them."""
        dtype = node.meta["val"].dtype
        with self.graph.inserting_before(node):
            new = self.graph.call_function(target, tuple(args), kwargs or {})
            new.meta = dict(node.meta)
            source = next(arg for arg in args if isinstance(arg, fx.Node))
            if source.meta["val"].dtype != dtype:  # casts inside a chain were seen through
                new = self.graph.call_function(aten._to_copy.default, (new,), {"dtype": dtype})
                new.meta = dict(node.meta)
        self.exchange(node, new)

    def drop_dead_code(self) -> None:
        """A module's input or output that has become dead is forgotten, not left dangling."""
        drop_dead_code(self.graph)
        alive = set(self.graph.nodes)
        for nodes in (self.module_inputs, self.module_outputs):
            for path in [path for path, node in nodes.items() if node not in alive]:
                del nodes[path]

    def sources(self, var: Registry) -> list[fx.Node]:
        """The placeholders at which variance starts: inputs that are Moments, and parameters that have a variance."""
        parameters = [node for node, (kind, path) in self.tensors.items() if kind == "mean" and path in var]
        flags = random_inputs(self.structure)
        return parameters + [node for node, flag in zip(self.inputs, flags, strict=True) if flag]

    def run(self, tensors: Registries, inputs: list[Tensor], kept: Container[fx.Node]) -> dict[fx.Node, Any]:
        """The values of the ``kept`` nodes, with the means as weights. The others go after their last use, as in the
        model: all activations of a large one would not fit.
        """
        values: dict[fx.Node, Any] = dict(zip(self.inputs, inputs, strict=True))
        values |= {node: getattr(tensors, kind)[path] for node, (kind, path) in self.tensors.items()}
        last = {arg: node for node in self.ops() for arg in node.all_input_nodes}
        for node in self.ops():
            evaluate([node], values)
            for arg in node.all_input_nodes:
                if last[arg] is node and arg not in kept:
                    del values[arg]
        return values


@dataclass(frozen=True, eq=False)
class Guards:
    """Values of its inputs that a graph was captured with: it is valid for calls that have the same."""

    captured: Captured
    """A graph that computes the values from inputs and tensors."""
    expected: list[tuple[fx.Node, float, str]]
    """What each must be, and what to say if it is not."""

    def broken(self, tensors: Registries, inputs: list[Tensor]) -> str | None:
        """Why the graph is not valid for these inputs; None if it is."""
        with torch.no_grad():
            values = self.captured.run(tensors, inputs, {node for node, *_ in self.expected})
        for node, value, reason in self.expected:
            if values[node].item() != value:
                return f"{reason} (it was captured with {value:g}, here it is {values[node].item():g})"
        return None


def reachable(graph: fx.Graph, sources: Iterable[fx.Node]) -> set[fx.Node]:
    """Every node that depends on a source, and the sources."""
    reached = set(sources)
    for node in graph.nodes:
        if any(arg in reached for arg in node.all_input_nodes):
            reached.add(node)
    return reached


def upstream(node: fx.Node, follow: Callable[[fx.Node], bool] = lambda _: True) -> list[fx.Node]:
    """The node and what it depends on, as far as ``follow`` says, in the order of the graph."""
    found: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current not in found:
            found.add(current)
            pending += filter(follow, current.all_input_nodes)
    return sorted(found)


def evaluate(nodes: Iterable[fx.Node], values: dict[fx.Node, Any]) -> None:
    """Run the ops among the nodes, given in the order of the graph, and add what they return to ``values``."""
    for node in nodes:
        if node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]


def write_op(graph: fx.Graph, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new node where the graph is being written, with the value that the op has there."""
    new = graph.call_function(op, args, kwargs)
    values = fx.map_arg((args, kwargs), lambda arg: arg.meta["val"])
    with enable_python_dispatcher():  # without, ops that consist of others ask torch 2.11 for sizes that are free
        new.meta["val"] = op(*values[0], **values[1])
    return new


def drop_dead_code(graph: fx.Graph) -> None:
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))


def strip_assertions(graph: fx.Graph) -> None:
    """Remove checks of baked metadata, which would fail at batch size 1, and with them all dead code."""
    names = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range", "_guards_fn")
    for node in list(graph.nodes):
        if any(name in str(node.target) for name in names) and not node.users:
            graph.erase_node(node)
    drop_dead_code(graph)


def keep_constant(tensor: Tensor, constants: Registry) -> str:
    """Keep a tensor that a forward or a rule creates, under a name that is its content: graphs share equal ones."""
    content = b"" if tensor.is_meta else tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    name = "c" + hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + content).hexdigest()[:16]
    constants[name] = tensor
    return name


# --- where an op stands --------------------------------------------------------------------------


def module_path(node: fx.Node) -> str:
    """The path of the innermost module that ran the op."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = stack[-1][0] if stack else ""
    return "" if path == "model" else path.removeprefix("model.")


def module_class(node: fx.Node) -> str:
    stack = list(node.meta.get("nn_module_stack", {}).values())
    kind = stack[-1][1] if stack else ""
    return (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]


def source_line(node: fx.Node) -> str:
    """``file.py:88`` of the innermost frame outside torch and varprop; nothing if there is none."""
    frames = re.findall(r'File "(.+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [f"{path.rpartition('/')[2]}:{line}" for path, line in frames if not is_internal(path)]
    return own[-1] if own else ""


def is_internal(path: str) -> bool:
    return "/torch/" in path or path.startswith(PACKAGE)


def outside() -> int:
    """The level, for a warning of our own caller, of the first frame that is neither torch's nor ours."""
    frames = enumerate(traceback.walk_stack(sys._getframe(1)), start=1)
    return next((level for level, (frame, _) in frames if not is_internal(frame.f_code.co_filename)), 1)


def place_of(node: fx.Node) -> str:
    """Module path, and the line if it is known."""
    line = source_line(node)
    return (module_path(node) or "the top level") + (f" ({line})" if line else "")


def numbered(path: str, count: int) -> str:
    """``path`` for the first call, ``path#2`` for the second."""
    return path if count == 1 else f"{path}#{count}"


# --- what an op is -------------------------------------------------------------------------------


def arguments(node: Any) -> dict[str, Any]:
    """The arguments of one of torch's ops by name, defaults included; none for anything else."""
    if not isinstance(node, fx.Node) or not isinstance(node.target, torch._ops.OpOverload):
        return {}
    schema = node.target._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return defaults | dict(zip((argument.name for argument in schema), node.args, strict=False)) | node.kwargs


def is_plain(node: fx.Node, target: Any) -> bool:
    """Is it this sum or difference, and not one with a factor on the second term?"""
    return node.target is target and bool(node.kwargs.get("alpha", 1) == 1)


def is_transparent(node: fx.Node) -> bool:
    """Does the op hand on its input? A cast to integers does not."""
    return node.target in IDENTITIES and node.meta["val"].is_floating_point()


def see_through(node: Any) -> Any:
    while isinstance(node, fx.Node) and is_transparent(node):
        node = node.args[0]
    return node


# --- sizes ---------------------------------------------------------------------------------------


def shape_of(node: fx.Node) -> list[str]:
    """Sizes as text, free ones by their names, because comparing symbols adds guards; empty if it is not a tensor."""
    value = node.meta.get("val")
    return [*map(str, value.shape)] if isinstance(value, Tensor) else []


def outline_of(node: fx.Node) -> str:
    """Dtype and shape of a node's value; empty if it is not a tensor."""
    value = node.meta.get("val")
    return f"{value.dtype} {shape_of(node)}" if isinstance(value, Tensor) else ""


def sizes_of(node: fx.Node) -> tuple[Size, ...]:
    """A number for each size that export fixed, a symbol's name for each it left free."""
    return tuple(int(n) if isinstance(n, int) or not n.node.expr.is_Symbol else str(n) for n in node.meta["val"].shape)


def size_ranges(program: torch.export.ExportedProgram) -> dict[str, tuple[int, float]]:
    """The least and the largest that sizes may be; of numbers that are no sizes, such as a sum of a mask, neither."""
    ranges = {str(symbol): (found.lower, found.upper) for symbol, found in program.range_constraints.items()}
    return {
        name: (int(low) if low.is_Integer else 0, int(high) if high.is_Integer else math.inf)
        for name, (low, high) in ranges.items()
    }


# --- what is computed ----------------------------------------------------------------------------


def format_args(value: Any, names: dict[fx.Node, str], plain: Callable[[Any], str] = repr) -> str:
    """The arguments of an op as text, its nodes by name."""
    if isinstance(value, fx.Node):
        return names.get(value, value.name)
    if isinstance(value, list | tuple):
        return f"[{','.join(format_args(item, names, plain) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{format_args(item, names, plain)}' for key, item in value.items())}}}"
    return plain(value)


def fingerprint(captured: Captured) -> str:
    """Equal for graphs that compute the same from the same tensors of the model; devices do not count."""
    names = {node: f"%{index}" for index, node in enumerate(captured.ops())}
    names |= {node: f"%input{index}" for index, node in enumerate(captured.inputs)}
    names |= {node: f"%{path}" for node, (_, path) in captured.tensors.items()}

    def plain(value: Any) -> str:
        return "device" if isinstance(value, torch.device) else repr(value)

    total = hashlib.sha256()
    for node in (*captured.ops(), captured.graph.output_node()):
        text = (
            f"{op_name(node.target)} {format_args(node.args, names, plain)} {format_args(node.kwargs, names, plain)}\n"
        )
        total.update(text.encode())
    return total.hexdigest()
