"""Model → functional ATen graph, with module paths, source lines and every module's inputs and outputs."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.overrides import TorchFunctionMode

from varprop.errors import CaptureError
from varprop.graph.annotations import annotate, read_annotations
from varprop.graph.canonicalize import name_instance_norms
from varprop.graph.captured import Captured, keep_constant, numbered, size_ranges, strip_assertions
from varprop.graph.diagnostics import in_eval, one_at_a_time, refuse_drawing, refuse_writing, require_rules
from varprop.graph.interpreter import Applied
from varprop.graph.output import Output, select_output
from varprop.graph.registry import Registries, Registry
from varprop.graph.signature import Binder, Call, Size, Structure, dynamic_shapes, example_input
from varprop.graph.unroll import Unrolled
from varprop.graph.value_reads import ValueReads
from varprop.rules import RuleSet

SOFTMAX: dict[Any, str] = {
    torch.ops.aten.softmax.int: "softmax",
    torch.ops.aten._softmax.default: "softmax",
    torch.ops.aten.log_softmax.int: "log_softmax",
    torch.ops.aten._log_softmax.default: "log_softmax",
}

RRELU: Any = torch.ops.aten.rrelu_with_noise_functional.default
SYMBOLS: set[Any] = {torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default, torch.ops.aten.sym_stride.int}

LOGGERS = (
    *("torch.export", "torch._export", "torch._export.non_strict_utils", "torch.export._trace", "torch._dynamo"),
    *("torch.fx.experimental.symbolic_shapes", "torch.fx.experimental.proxy_tensor", "torch._functorch"),
    "torch._subclasses.fake_tensor",
)


@dataclass(frozen=True)
class Lifting:
    """What is compiled: a model, the tensors of a network in place of its own, and the rules that lift it."""

    model: nn.Module
    tensors: Registries
    rules: RuleSet
    output: Output
    require: Callable[[list[Applied], str, RuleSet], None] = require_rules
    """Raises if what became of the model's ops is not enough."""


class Model(nn.Module):
    """The model in eval mode, called with the tensors of a network in place of its own, returning one tensor.

    Its registries are copies that hold the same tensors: while torch exports a module, fake tensors lie in it, which
    calls of the network in other threads must not meet.
    """

    def __init__(self, lifting: Lifting, structure: Structure, mode: TorchFunctionMode | None = None) -> None:
        super().__init__()
        self.mode = mode or contextlib.nullcontext()
        tensors = lifting.tensors
        self.model, self.mean, self.buffer = lifting.model, Registry([*tensors.mean]), Registry([*tensors.buffer])
        self.structure, self.output = structure, lifting.output
        self.binder = Binder(lifting.model.forward)

    def forward(self, *inputs: Tensor) -> Tensor:
        tensors = dict([*self.mean, *self.buffer])

        def run(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(self.model, tensors, args, kwargs)

        with self.mode, in_eval(self.model):
            return select_output(self.binder.run(run, self.structure, inputs), self.output)


def export(lifting: Lifting, call: Call, sizes: list[tuple[Size, ...]], values: list[Any] | None = None) -> Captured:
    """Capture the model in a call like this one; of the ``sizes`` of its inputs, those without a number may stay free.
    Ops that have no rule and consist of others become those: ``special_expit`` is ``sigmoid``. Values that forward
    reads from its inputs are those that ``read_values`` found, if they are given.

    Constants that its forward creates are added to the tensors. Raises whatever ``torch.export`` raises: see
    ``capture_error`` for what to make of it.
    """
    examples = tuple(map(example_input, call.inputs, sizes))
    model = Model(lifting, call.structure, None if values is None else ValueReads(values))
    with watched(lifting.model, lambda kind, path, x: annotate(x, kind, path)), Unrolled():
        with _silent_if_it_fails():
            program = torch.export.export(model, examples, strict=False, dynamic_shapes=(dynamic_shapes(sizes),))
        _drop_dropout(program.graph)
        composites = _composites(program.graph, lifting.rules)
        if composites or not _is_functional(program.graph):  # else it would be the same, after as long as an export
            program = program.run_decompositions(composites | {RRELU: _rrelu})
    captured = _read(program, call.structure, lifting.tensors.constant)
    _leave_softmax_to_the_link(captured)
    name_instance_norms(captured)
    refuse_drawing(captured)
    refuse_writing(program)
    return captured


def _composites(graph: fx.Graph, known: Container[Any]) -> dict[Any, Callable[..., Any]]:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    ops = {node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)} - SYMBOLS
    made = {op for op in ops if op not in known and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)}
    return {op: functools.partial(op._op_dk, key) for op in made}


def _drop_dropout(graph: fx.Graph) -> None:
    """Outside of training it hands on its input."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.dropout.default):
        if node.args[2] is False:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _is_functional(graph: fx.Graph) -> bool:
    """Does no op write to what others read, or contain a graph of its own?"""
    targets = {node.target for node in graph.nodes if node.op == "call_function"}
    if RRELU in targets or any(isinstance(op, torch._ops.HigherOrderOperator) for op in targets):
        return False
    return not any(op._schema.is_mutable for op in targets if isinstance(op, torch._ops.OpOverload))


def _rrelu(x: Tensor, noise: Tensor, lower: float, upper: float, training: bool = False, *rest: Any) -> Any:
    """Its slope is random in training, and else that in the middle."""
    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


def read_values(lifting: Lifting, call: Call) -> list[Any]:
    """What forward reads from its inputs in this call: numbers, and sizes that depend on entries."""
    reads = ValueReads()
    Model(lifting, call.structure, reads)(*(x.clone() for x in call.given_inputs))
    return reads.seen


def is_traced() -> bool:
    """Do torch.compile or torch.export trace this thread? What torch says of compiling is of any thread."""
    if torch.compiler.is_dynamo_compiling():
        return True
    return torch.compiler.is_compiling() and torch._guards.detect_fake_mode() is not None


@contextlib.contextmanager
def _silent_if_it_fails() -> Iterator[None]:
    """torch prints the graph so far before it raises; what a model prints comes out once it is captured."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        yield
    sys.stderr.write(printed.getvalue())


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """What torch's exporter logs about a failure, hundreds of lines of graphs; its error says the same."""
    thread = threading.get_ident()

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(elsewhere)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(elsewhere)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Plain float maths without autograd, and without torch's logs and warnings about its own internals; in one thread
    at a time, because a model that is captured has hooks and other tensors than its own.

    Also without the fast path of ``nn.TransformerEncoder``, which no graph holds: it skips padded tokens and returns
    zeros for them, where the plain path returns what nobody should read.
    """
    with (
        one_at_a_time,
        contextlib.ExitStack() as after,
        _without_logs(),
        warnings.catch_warnings(action="ignore"),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        after.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        yield


@contextlib.contextmanager
def watched(model: nn.Module, note: Callable[[str, str, Tensor], None]) -> Iterator[None]:
    """While open, ``note("in" or "out", path, x)`` sees the first tensor each module gets and returns.

    The path is ``path#k`` in the k-th call of a module.
    """
    calls: Counter[tuple[str, str]] = Counter()

    def first(kind: str, path: str, _: nn.Module, *values: Any) -> None:
        calls[kind, path] += 1
        for value in _tensors(values if kind == "in" else values[-1]):
            note(kind, numbered(path, calls[kind, path]), value)
            return

    with contextlib.ExitStack() as hooks:
        for path, module in model.named_modules():
            pre, post = (functools.partial(first, kind, path) for kind in ("in", "out"))
            hooks.enter_context(module.register_forward_pre_hook(pre, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(post, with_kwargs=True))
        yield


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _read(program: torch.export.ExportedProgram, structure: Structure, constants: Registry) -> Captured:
    """Name the placeholders, take the annotations out, drop assertions about baked shapes and dtypes."""
    captured = Captured(program.graph, structure, size_ranges(program))
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph.find_nodes(op="placeholder"):
        spec = specs[node.name]
        owner, _, path = (spec.target or "").partition(".")
        if spec.kind is InputKind.USER_INPUT:
            captured.inputs.append(node)
        elif owner in ("mean", "buffer"):
            captured.tensors[node] = owner, path
        elif spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER):
            captured.tensors[node] = "constant", keep_constant(program.constants[spec.target], constants)
        elif node.users:  # the model's own tensor: replaced by the registry's, so nothing may use it
            raise CaptureError(f"the model reads {spec.target} in a way that torch.func.functional_call cannot replace")
    read_annotations(captured)
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    output = program.graph.output_node()
    output.args = ((output.args[0][kinds.index(OutputKind.USER_OUTPUT)],),)  # inputs written to are listed before
    strip_assertions(program.graph)
    return captured


def _leave_softmax_to_the_link(captured: Captured) -> None:
    """A model that ends in softmax is propagated up to its logits, which is what links expect: a softmax of means
    carries no variance.
    """
    last = captured.output
    if last.target in SOFTMAX and last.args[1] in (-1, last.meta["val"].ndim - 1):
        captured.ending = SOFTMAX[last.target]
        captured.graph.output_node().args = ((last.args[0],),)
