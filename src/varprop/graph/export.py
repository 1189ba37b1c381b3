"""Model → functional ATen graph, with module paths, source lines and every module's inputs and outputs marked."""

from __future__ import annotations

import contextlib
import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind

from varprop.errors import CaptureError, InputError, TrainingModeError, VarpropError
from varprop.graph.output import select_output
from varprop.graph.registry import Registry
from varprop.graph.signature import (
    Binder,
    Size,
    Structure,
    dynamic_shapes,
    unflatten,
)

Output = str | int | Callable[[Any], Tensor] | None


@torch.library.custom_op("varprop::mark", mutates_args=())
def mark(x: Tensor, key: str) -> None:
    """Notes in the graph which value passes a module's boundary; removed right after capture."""


@mark.register_fake
def _(x: Tensor, key: str) -> None:
    return None


fx.node.has_side_effect(torch.ops.varprop.mark.default)  # else it would be removed before we read it


@dataclass
class Captured:
    """The graph of one call signature. Its placeholders are named tensors of the model and inputs."""

    graph: fx.Graph
    parameters: dict[fx.Node, str]
    buffers: dict[fx.Node, str]
    constants: dict[fx.Node, str]
    inputs: list[fx.Node]
    ranges: dict[str, tuple[int, float]]
    made_up: dict[str, Tensor] = field(default_factory=dict)  # the constants, by name
    module_inputs: dict[str, fx.Node] = field(default_factory=dict)
    module_outputs: dict[str, fx.Node] = field(default_factory=dict)

    @property
    def output(self) -> fx.Node:
        return self.graph.output_node().args[0][0]  # type: ignore[index,return-value]

    def ops(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "call_function"]


class _Call(nn.Module):
    """The model called with the tensors of a registry in place of its own, returning one tensor."""

    def __init__(
        self, model: nn.Module, parameters: Registry, buffers: Registry, structure: Structure, output: Output
    ) -> None:
        super().__init__()
        self.model, self.parameters_, self.buffers_ = model, parameters, buffers
        self.structure, self.output = structure, output
        self.binder = Binder(model.forward)

    def forward(self, *leaves: Tensor) -> Tensor:
        unnamed, named = unflatten(self.structure, iter(leaves))
        tensors = self.parameters_.tensors() | self.buffers_.tensors()

        def run(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(self.model, tensors, args, kwargs)

        return select_output(self.binder.call(run, unnamed, named), self.output)


def export(
    model: nn.Module,
    parameters: Registry,
    buffers: Registry,
    structure: Structure,
    examples: list[Tensor],
    free: list[list[bool]],
    output: Output = None,
) -> Captured:
    """Capture ``model`` on inputs shaped like ``examples``; sizes marked ``free`` may stay symbolic.

    Raises whatever ``torch.export`` raises: see ``capture_error`` for what to make of it.
    """
    call = _Call(model, parameters, buffers, structure, output)
    with _marked(model):
        program = torch.export.export(call, tuple(examples), strict=False, dynamic_shapes=(dynamic_shapes(free),))
        program = program.run_decompositions({})
    captured = _read(program)
    _refuse_training(captured, program)
    return captured


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Plain float maths without autograd, and without torch's warnings about its own internals."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def capture_error(model: nn.Module, structure: Structure, leaves: list[Tensor], error: Exception) -> VarpropError:
    """What a failed export means: the user's inputs if the model itself fails on them, else the model."""
    if isinstance(error, VarpropError):
        return error
    name = type(model).__name__
    unnamed, named = unflatten(structure, iter(leaves))
    try:
        with torch.no_grad():
            Binder(model.forward).call(model, unnamed, named)
    except Exception as own:  # noqa: BLE001 (whatever the model raises is what we report)
        integers = [i for i, leaf in enumerate(leaves) if not leaf.is_floating_point()]
        hint = f" Input {integers[0]} is {leaves[integers[0]].dtype}: does it need .float()?" if integers else ""
        return InputError(f"{name} itself fails on these inputs: {own}.{hint}")
    reason = str(error).strip().splitlines()
    return CaptureError(
        f"{name} cannot be captured by torch.export: {reason[0] if reason else type(error).__name__}\n"
        "Its forward depends on tensor values or leaves torch: propagate a submodule of it, or rewrite that part."
    )


def module_path(node: fx.Node) -> str:
    """The path of the innermost module that ran the op."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return _strip(stack[-1][0]) if stack else ""


def module_class(node: fx.Node) -> str:
    stack = list(node.meta.get("nn_module_stack", {}).values())
    kind = stack[-1][1] if stack else ""
    return (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]


def source_line(node: fx.Node) -> str:
    """``file.py:88`` of the innermost frame outside torch."""
    frames = [
        line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File ")
    ]
    for frame in reversed(frames):
        path, _, rest = frame.removeprefix('File "').partition('", line ')
        if "/torch/" not in path:
            return f"{path.rpartition('/')[2]}:{rest.partition(',')[0]}"
    return ""


def _strip(path: str) -> str:
    return "" if path == "model" else path.removeprefix("model.")


@contextlib.contextmanager
def _marked(model: nn.Module) -> Iterator[None]:
    """While open, every module marks its first input and output tensor."""
    with watched(model, lambda kind, path, x: torch.ops.varprop.mark(x, f"{kind}:{path}")):
        yield


@contextlib.contextmanager
def watched(model: nn.Module, note: Callable[[str, str, Tensor], None]) -> Iterator[None]:
    """While open, ``note("in" or "out", path, x)`` sees the first tensor each module gets and returns.

    The path is ``path#k`` in the k-th call of a module.
    """
    calls: Counter[tuple[str, str]] = Counter()

    def first(kind: str, path: str, values: Any) -> None:
        calls[kind, path] += 1
        for value in _tensors(values):
            note(kind, numbered(path, calls[kind, path]), value)
            return

    handles = []
    for path, module in model.named_modules():
        pre = lambda _, args, kwargs, path=path: first("in", path, (args, kwargs))  # noqa: E731
        post = lambda _, args, kwargs, result, path=path: first("out", path, result)  # noqa: E731
        handles.append(module.register_forward_pre_hook(pre, with_kwargs=True))
        handles.append(module.register_forward_hook(post, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def numbered(path: str, count: int) -> str:
    """``path`` for the first call, ``path#2`` for the second."""
    return path if count == 1 else f"{path}#{count}"


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _read(program: torch.export.ExportedProgram) -> Captured:
    """Name the placeholders, lift the marks out, drop assertions about baked shapes and dtypes."""
    captured = Captured(program.graph, {}, {}, {}, [], size_ranges(program))
    named = {InputKind.PARAMETER: captured.parameters, InputKind.BUFFER: captured.buffers}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph.find_nodes(op="placeholder"):
        spec = specs[node.name]
        if spec.kind is InputKind.USER_INPUT:
            captured.inputs.append(node)
        elif (spec.target or "").startswith("parameters_."):
            captured.parameters[node] = spec.target.removeprefix("parameters_.")
        elif (spec.target or "").startswith("buffers_."):
            captured.buffers[node] = spec.target.removeprefix("buffers_.")
        elif spec.kind in named:  # the model's own tensor: replaced by the registry's, so nothing may use it
            if node.users:
                raise CaptureError(
                    f"the model reads {spec.target} in a way that torch.func.functional_call cannot replace"
                )
        else:
            tensor = program.constants[spec.target]
            captured.constants[node] = constant_name(tensor)
            captured.made_up[captured.constants[node]] = tensor
    for node in list(program.graph.nodes):
        if node.target is torch.ops.varprop.mark.default:
            kind, _, path = node.args[1].partition(":")
            (captured.module_inputs if kind == "in" else captured.module_outputs)[path] = node.args[0]
            program.graph.erase_node(node)
    strip_assertions(program.graph)
    return captured


def constant_name(tensor: Tensor) -> str:
    """A tensor the model makes up in its forward is named by its content, so that graphs share equal ones."""
    content = b"" if tensor.is_meta else tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return "c" + hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + content).hexdigest()[:16]


def sizes_of(node: fx.Node) -> tuple[Size, ...]:
    """A number for each size that export fixed, a symbol's name for each it left free."""
    return tuple(int(n) if isinstance(n, int) or not n.node.expr.is_Symbol else str(n) for n in node.meta["val"].shape)


def size_ranges(program: torch.export.ExportedProgram) -> dict[str, tuple[int, float]]:
    def bound(value: Any) -> float:
        return int(value) if value.is_Integer else math.inf

    return {str(s): (int(bound(r.lower)), bound(r.upper)) for s, r in program.range_constraints.items()}


def strip_assertions(graph: fx.Graph) -> None:
    """Remove checks of baked metadata, which would fail at batch size 1, and with them all dead code."""
    names = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range", "_guards_fn")
    for node in list(graph.nodes):
        if any(name in str(node.target) for name in names) and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))


def _draws(node: fx.Node) -> bool:
    """Does the op draw random numbers? Attention is tagged so, but does it only with dropout."""
    if node.target is torch.ops.aten.scaled_dot_product_attention.default:
        return bool(node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0))
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _refuse_training(captured: Captured, program: torch.export.ExportedProgram) -> None:
    for node in captured.ops():
        place = f"{node.target} at {module_path(node) or 'the top level'} ({source_line(node)})"
        if "batch_norm" in str(node.target) and "no_training" not in str(node.target):
            raise TrainingModeError(f"{place} uses batch statistics: call model.eval() first")
        if _draws(node):
            raise TrainingModeError(
                f"{place} may draw random numbers: if it is dropout, call model.eval() first; a model that draws "
                "even so, or a recurrent layer (which torch keeps as one op), cannot be propagated"
            )
    written = list(program.graph_signature.buffers_to_mutate.values())
    if written:
        names = ", ".join(name.removeprefix("buffers_.") for name in written)
        raise CaptureError(
            f"forward writes to buffers ({names}), which a pure graph cannot do: call model.eval() or detach that part"
        )
