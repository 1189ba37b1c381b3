"""A captured graph as JSON, and back without the model: its ops are run anew, on tensors without numbers.

Whatever contradicts itself, the network's tensors or torch is a ValueError that names the place.
"""

from __future__ import annotations

import inspect
import math
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StrictMinMaxConstraint
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from varprop.graph.call_json import dtype_of
from varprop.graph.captured import Captured, evaluate, module_class, module_path, shape_of, sizes_of, source_line
from varprop.graph.export import SOFTMAX, quiet
from varprop.graph.node_json import MAX_INT, Reader, write_rows
from varprop.graph.registry import Registries
from varprop.graph.signature import Call, Size, dtype_name
from varprop.graph.trace_cache import require_free_sizes

aten = torch.ops.aten

MAX_ENTRIES = 1 << 38
"""Entries of a tensor in a graph that is read: more are no network."""

ASKING_FOR_OTHERS = (
    *(f"torch/fx/experimental/{name}.py" for name in ("recording", "sym_node", "symbolic_shapes")),
    *(f"torch/_subclasses/{name}.py" for name in ("fake_tensor", "meta_utils")),
    *("torch/__init__.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py", "varprop/graph/graph_json.py"),
)


def write_captured(captured: Captured, device: torch.device) -> dict[str, Any]:
    """A TypeError if the graph has tensors elsewhere than on the device, or something that is not stored. Graphs with
    guards are not written.
    """
    ops, names = captured.ops(), {node: index for index, node in enumerate((*captured.tensors, *captured.inputs))}
    for value in tree_leaves([(node.args, node.kwargs) for node in ops]):
        if isinstance(value, torch.device) and value.type != device.type:
            raise TypeError(f"it uses {value} and {device}")
    places = [[module_path(node), module_class(node), source_line(node)] for node in ops]
    table = [list(place) for place in dict.fromkeys(map(tuple, places))]
    return {
        "tensors": [[*name, _dtype(node), *node.meta["val"].shape] for node, name in captured.tensors.items()],
        "inputs": [[_dtype(node), *_sizes(node)] for node in captured.inputs],
        "ranges": {name: [low, None if high == math.inf else high] for name, (low, high) in captured.ranges.items()},
        "rows": write_rows(ops, names),
        "places": table,
        "at": [table.index(place) for place in places],
        "marks": [
            {path: names[node] for path, node in nodes.items()}
            for nodes in (captured.module_inputs, captured.module_outputs)
        ],
        "roles": [[names[node], node.meta["role"]] for node in ops if "role" in node.meta],
        "output": names[captured.output],
        "ending": captured.ending,
    }


def _dtype(node: fx.Node) -> str:
    return dtype_name(node.meta["val"].dtype)


def _sizes(node: fx.Node) -> tuple[Size, ...]:
    sizes = sizes_of(node)
    if shape_of(node) != [*map(str, sizes)]:
        raise TypeError(f"an input has a size of {shape_of(node)}")
    return sizes


def read_captured(record: Any, call: Call, tensors: Registries) -> Captured:
    """What ``write_captured`` wrote of the graph of this call, on the device of ``tensors``."""
    try:
        with quiet():
            return _Restorer(record, call, tensors).captured
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(reason[0]) from error


class _Sizes(ShapeEnv):
    """Free sizes under the names they had."""

    def _generate_unique_id(self, source_name: str) -> int:
        return int(source_name.removeprefix("s"))

    def _get_user_frame(self) -> FrameType | None:
        """Who asks for a size. Torch's own list of files that do so for others takes most of torch to load."""
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename.endswith(ASKING_FOR_OTHERS):
            frame = frame.f_back
        return frame


class _Restorer:
    def __init__(self, record: dict[str, Any], call: Call, tensors: Registries) -> None:
        self.record, self.tensors, self.env = record, tensors, _Sizes()
        self.mode, self.free = FakeTensorMode(shape_env=self.env), dict[str, Any]()
        ranges = {name: _range(*given) for name, given in record["ranges"].items()}
        self.captured = Captured(fx.Graph(), call.structure, ranges, ending=_text(record["ending"]))
        if self.captured.ending not in ("", *SOFTMAX.values()):
            raise ValueError(f"there is no ending {self.captured.ending!r:.40}")
        self._bind(call)
        nodes = [*self.captured.tensors, *self.captured.inputs]
        ops = Reader(self.captured.graph, nodes, tensors.device).read_rows(record["rows"])
        self._run(ops)
        self._annotate(ops, nodes)

    def _bind(self, call: Call) -> None:
        """Placeholders for tensors, which must be those that were noted, and for inputs."""
        graph, captured = self.captured.graph, self.captured
        for index, (kind, path, *outline) in enumerate(self.record["tensors"]):
            tensor = _tensor(self.tensors, kind, path)
            if outline != [dtype_name(tensor.dtype), *tensor.shape]:
                raise ValueError(f"{kind} {path!r} is {dtype_name(tensor.dtype)} {list(tensor.shape)}, not {outline}")
            node = graph.placeholder(f"tensor_{index}")
            node.meta["val"] = self.mode.from_tensor(tensor.detach(), static_shapes=True)
            captured.tensors[node] = kind, path
        for index, ((dtype, *sizes), x) in enumerate(zip(self.record["inputs"], call.inputs, strict=True)):
            node = graph.placeholder(f"inputs_{index}")
            shape = [self._size(size, n) for size, n in zip(sizes, x.shape, strict=True)]
            if dtype_of(dtype) != x.dtype:
                raise ValueError(f"input {index} is {dtype} in one place and {dtype_name(x.dtype)} in another")
            with self.mode:
                node.meta["val"] = torch.empty(shape, dtype=x.dtype, device=self.tensors.device)
            captured.inputs.append(node)

    def _size(self, size: Any, example: int) -> Any:
        """A fixed one, or a symbol, of which the call has an example; torch takes one of 1 for fixed."""
        if isinstance(size, int):
            if size != example:
                raise ValueError(f"an input has a size of {size} in one place and {example} in another")
            return size
        if size not in self.free:
            low, high = self.captured.ranges[size]
            limits = StrictMinMaxConstraint(False, ValueRanges(low, int_oo if high == math.inf else int(high)))
            source, hint = ConstantSource(size), max(example, 2)
            symbol = self.env.create_symbol(hint, source, DimDynamic.DYNAMIC, limits)
            self.free[size] = self.env.create_symintnode(symbol, hint=hint, source=source)
        return self.free[size]

    def _run(self, ops: list[fx.Node]) -> None:
        """The values of all ops, none of which may ask for particular sizes."""
        values = {node: node.meta["val"] for node in (*self.captured.tensors, *self.captured.inputs)}
        with self.mode, require_free_sizes(self.mode), enable_python_dispatcher():
            for index, node in enumerate(ops):
                try:
                    _run(node, values)
                except Exception as error:
                    raise ValueError(f"row {index}, {self.record['rows'][index][0]!r}: {error}") from error

    def _annotate(self, ops: list[fx.Node], nodes: list[fx.Node]) -> None:
        """Where each op stands, and what modules get and return."""
        record, captured = self.record, self.captured
        places = [[_text(part) for part in place] for place in record["places"]]
        for node, index in zip(ops, record["at"], strict=True):
            path, kind, line = places[index]
            node.meta["nn_module_stack"] = {"": (f"model.{path}" if path else "model", kind)}
            file, _, number = line.rpartition(":")
            node.meta["stack_trace"] = f'File "{file}", line {number}'
        for found, given in zip((captured.module_inputs, captured.module_outputs), record["marks"], strict=True):
            found.update({path: nodes[index] for path, index in given.items()})
        for index, role in record["roles"]:
            nodes[index].meta["role"] = _text(role)
        captured.graph.output((nodes[record["output"]],))


def _run(node: fx.Node, values: dict[fx.Node, Any]) -> None:
    target = node.target
    if target is aten.view.default:  # strides may be others than those of the model
        node.target = aten.reshape.default
    evaluate([node], values)
    node.target = target
    for part in tree_leaves(values[node]):
        entries = math.prod(map(_hint, part.shape)) if isinstance(part, Tensor) else 0
        if entries > MAX_ENTRIES or (isinstance(part, int) and not -MAX_INT <= part < MAX_INT):
            raise ValueError("its result is too large")
    node.meta["val"] = values[node]


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else size.node.hint or 0


def _tensor(tensors: Registries, kind: Any, path: Any) -> Tensor:
    if kind not in ("mean", "buffer", "constant") or not isinstance(path, str) or path not in getattr(tensors, kind):
        raise ValueError(f"there is no tensor {path!r:.60} among {kind!r:.20}")
    return getattr(tensors, kind)[path]


def _range(low: Any, high: Any) -> tuple[int, float]:
    if type(low) is not int or type(high) not in (int, type(None)):
        raise ValueError("a range of sizes is not two numbers")
    return low, math.inf if high is None else high


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is no text")
    return value
