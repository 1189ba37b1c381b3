"""Walk a captured graph and apply a rule per op; trace that walk into a flat graph of plain tensors."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from varprop.capture.export import (
    Captured,
    module_class,
    module_path,
    numbered,
    quiet,
    size_ranges,
    sizes_of,
    source_line,
    strip_assertions,
)
from varprop.capture.regroup import reachable
from varprop.capture.registry import Registry
from varprop.capture.signature import Signature, Structure, dynamic_shapes, random_leaves
from varprop.errors import RuleError, UnsupportedOpError
from varprop.moments import Moments, is_random
from varprop.rules.ruleset import Rule, RuleSet
from varprop.rules.structural import mean_args

OUTPUT = "(output)"
"""The name of the scale on the variance of the network's output."""


@torch.library.custom_op("varprop::tag", mutates_args=())
def tag(var: Tensor, index: int) -> Tensor:
    """Marks the variance of the index-th op while tracing; those still there after dead-code removal are asked for."""
    return var.clone()


@tag.register_fake
def _(var: Tensor, index: int) -> Tensor:
    return torch.empty_like(var)


@dataclass
class Applied:
    """What became of one op: its rule (None if there is none), and where variance comes and goes."""

    node: fx.Node
    rule: Rule | None
    reaches: bool  # an input carries variance
    leaves: bool  # the result carries variance
    needed: bool = False  # something downstream asks for that variance

    @property
    def missing(self) -> bool:
        return self.reaches and self.rule is None


@dataclass
class Journal:
    """What a walk did. An object of its own, because export undoes changes to a module's lists when it has traced it."""

    entries: list[Applied]


@dataclass
class Tensors:
    """The registries a lifted graph refers to, under the names they have in the network."""

    mean: Registry
    var: Registry
    buffer: Registry
    scale: Registry
    constant: Registry = field(default_factory=Registry)

    def attach(self, module: nn.Module) -> None:
        for name, registry in vars(self).items():
            setattr(module, name, registry)


class Walk(nn.Module):
    """Runs a captured graph on moments. Called on real tensors it is the reference for the flat graph."""

    def __init__(self, captured: Captured, structure: Structure, rules: RuleSet, tensors: Tensors, *, tracing: bool) -> None:
        super().__init__()
        tensors.attach(self)
        self.captured, self.rules, self.tracing = captured, rules, tracing
        self.structure = structure
        self.points = scale_points(captured, rules, tensors.var, random_leaves(structure))
        self.journal = Journal([])

    def forward(self, *leaves: Tensor) -> Any:
        values = self.run(*leaves)
        result = values[self.captured.output]
        return tuple(self._scaled(result, OUTPUT)) if is_random(result) else (result,)

    def run(self, *leaves: Tensor) -> dict[fx.Node, Any]:
        """The value of every node: Moments where it is random, else what the model computes there."""
        self.journal.entries = []
        values: dict[fx.Node, Any] = {}
        self._bind(values, iter(leaves))
        for node in self.captured.ops():
            args = fx.map_arg(node.args, values.__getitem__)
            kwargs = fx.map_arg(node.kwargs, values.__getitem__)
            values[node] = self._apply(node, args, kwargs)
        return values

    def _bind(self, values: dict[fx.Node, Any], leaves: Iterable[Tensor]) -> None:
        leaves = iter(leaves)
        for node, path in self.captured.parameters.items():
            mean = self.mean[path]
            values[node] = Moments(mean, self.var[path]) if path in self.points.random else mean
        for node, path in self.captured.buffers.items():
            values[node] = self.buffer[path]
        for node, name in self.captured.constants.items():
            values[node] = self.constant[name]
        symbols: dict[str, Any] = {}
        for node, random in zip(self.captured.inputs, random_leaves(self.structure), strict=True):
            value = next(leaves)
            values[node] = Moments(value, next(leaves)) if random else value
            if self.tracing:
                self._check_sizes(node, values[node], symbols)

    def _check_sizes(self, node: fx.Node, value: Any, symbols: dict[str, Any]) -> None:
        """Carry over to this trace what capture learnt about the sizes of inputs."""
        for part in value if is_random(value) else (value,):
            for size, expected in zip(part.shape, sizes_of(node), strict=True):
                if isinstance(expected, str):
                    low, high = self.captured.ranges.get(expected, (0, float("inf")))
                    torch._check(size >= low)
                    if high < float("inf"):
                        torch._check(size <= int(high))
                    torch._check(size == symbols.setdefault(expected, size))

    def _apply(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        op: Any = node.target
        if op is operator.getitem and not is_random(args[0]):
            return args[0][args[1]]
        if not _has_moments((args, kwargs)):
            self.journal.entries.append(Applied(node, None, False, False))
            return op(*args, **kwargs)
        rule = self.rules.get(op)
        if rule is not None and node in self.points.names:
            args = self._scale_first(args, self.points.names[node])
        try:
            result = NotImplemented if rule is None else rule(*args, **kwargs)
        except Exception as error:
            name = rule.name if rule else ""
            place = f"{module_path(node) or 'the top level'} ({source_line(node)})"
            raise RuleError(f"rule {name!r} for {op} failed at {place}: {error}") from error
        if result is NotImplemented:
            rule, result = None, _without_rule(op(*mean_args(args), **mean_args(kwargs)))
        self.journal.entries.append(Applied(node, rule, True, _has_moments(result)))
        return self._tagged(result, len(self.journal.entries) - 1) if self.tracing else result

    def _scale_first(self, args: Any, name: str) -> Any:
        position = next(i for i, arg in enumerate(args) if _has_moments(arg))
        return (*args[:position], self._scaled(args[position], name), *args[position + 1 :]) if is_random(args[position]) else args

    def _scaled(self, x: Moments, name: str) -> Moments:
        return Moments(x.mean, x.var * self.scale[scale_path(name)].exp())

    def _tagged(self, result: Any, index: int) -> Any:
        if is_random(result):
            return Moments(result.mean, torch.ops.varprop.tag(result.var, index))
        if isinstance(result, list | tuple):
            return [self._tagged(item, index) for item in result]
        return result


@dataclass(frozen=True)
class ScalePoints:
    random: frozenset[str]  # paths of random parameters
    names: dict[fx.Node, str]  # the scale of each op that has one


def scale_points(captured: Captured, rules: RuleSet, var: Registry, random_inputs: list[bool]) -> ScalePoints:
    """Name the scale of every op whose rule says it is scaled, where variance can reach it: ``path``, ``path#2``, …"""
    random = frozenset(path for path in captured.parameters.values() if path in var)
    sources = random_sources(captured, random, random_inputs)
    counts: Counter[str] = Counter()
    names = {}
    reached = reachable(captured.graph, sources)
    for node in captured.ops():
        rule = rules.get(node.target)  # type: ignore[arg-type]
        first = next((arg for arg in node.args if isinstance(arg, fx.Node)), None)
        if rule is not None and rule.scaled and first in reached:
            path = module_path(node)
            counts[path] += 1
            names[node] = numbered(path, counts[path])
    return ScalePoints(random, names)


def random_sources(captured: Captured, random: Iterable[str], random_inputs: list[bool]) -> list[fx.Node]:
    """The placeholders at which variance starts."""
    chosen = set(random)
    parameters = [node for node, path in captured.parameters.items() if path in chosen]
    return parameters + [node for node, flag in zip(captured.inputs, random_inputs, strict=True) if flag]


def scale_path(name: str) -> str:
    """Where a scale is kept. A leaf of its own, because one module's path may be the start of another's."""
    path, _, count = name.partition("#")
    leaf = f"log_alpha_{count}" if count else "log_alpha"
    return f"{path}.{leaf}" if path else leaf


@dataclass
class Lifted:
    """A flat graph of plain tensors, whose placeholders are the leaves of the call."""

    graph: fx.Graph
    signature: Signature
    applied: list[Applied]
    scales: list[str]  # names of the scales that matter, in graph order


def lift(captured: Captured, structure: Structure, rules: RuleSet, tensors: Tensors, examples: list[Tensor]) -> Lifted:
    """Trace the walk into a flat graph, drop what nothing asks for, and refuse if a rule is missing there."""
    walk = Walk(captured, structure, rules, tensors, tracing=True)
    leaves, free = [], []
    for node, example, random in zip(captured.inputs, examples, random_leaves(structure), strict=True):
        copies = 2 if random else 1
        leaves += [example] * copies
        free += [[isinstance(size, str) for size in sizes_of(node)]] * copies
    with quiet():
        program = torch.export.export(walk, tuple(leaves), strict=False, dynamic_shapes=(dynamic_shapes(free),))
    graph = program.graph
    graph.owning_module = None  # its attributes are those of the network, not of the exported program
    strip_assertions(graph)
    for index in _untag(graph):
        walk.journal.entries[index].needed = True
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
    placeholders = graph.find_nodes(op="placeholder")
    signature = _signature(structure, [node for node in placeholders if node.name not in targets], program)
    _name_tensors(graph, targets)
    used = {node.target for node in graph.find_nodes(op="get_attr")}
    scales = [name for name in (*walk.points.names.values(), OUTPUT) if f"scale.{scale_path(name)}" in used]
    return Lifted(graph, signature, walk.journal.entries, scales)


def require_rules(applied: list[Applied], model: str, rules: RuleSet) -> None:
    """Raise one error that lists every op whose variance is needed but has no rule."""
    gaps = [entry.node for entry in applied if entry.missing and entry.needed]
    if not gaps:
        return
    rows = [(str(n.target), f"at {module_path(n) or '(top level)'} ({module_class(n)})", source_line(n)) for n in gaps]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    table = "\n".join(f"  {op:<{widths[0]}}   {place:<{widths[1]}}   {line}".rstrip() for op, place, line in dict.fromkeys(rows))
    plural = "op has" if len(gaps) == 1 else "ops have"
    raise UnsupportedOpError(
        f"{len(gaps)} {plural} no variance rule in {rules.name} but variance reaches and leaves them in {model}\n{table}\n"
        f"Write one with @vp.rule({rows[0][0]}): see CONTRIBUTING.md. "
        "Or keep the parameters before them deterministic: posterior.restrict(...)."
    )


def _signature(structure: Structure, inputs: list[fx.Node], program: torch.export.ExportedProgram) -> Signature:
    sizes = tuple(sizes_of(node) for node in inputs)
    batch = {shape[0] for shape in sizes if shape}
    # Export assumes at least 2 of everything free; a batch of 1 is safe, because views were lifted as reshapes.
    ranges = {s: (1 if s in batch else low, high) for s, (low, high) in size_ranges(program).items()}
    return Signature(structure, tuple(node.meta["val"].dtype for node in inputs), sizes, ranges)


def _untag(graph: fx.Graph) -> set[int]:
    """Remove the tags; those that survived dead-code removal tell which variances are needed."""
    alive = set()
    for node in list(graph.nodes):
        if node.target is torch.ops.varprop.tag.default:
            alive.add(node.args[1])
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return alive


def _name_tensors(graph: fx.Graph, targets: dict[str, str]) -> None:
    """Placeholders of registered tensors become attributes; unused ones go."""
    for node in graph.find_nodes(op="placeholder"):
        if node.name in targets:
            if node.users:
                with graph.inserting_after(node):
                    attribute = graph.create_node("get_attr", targets[node.name], name=node.name)
                attribute.meta = dict(node.meta)
                node.replace_all_uses_with(attribute)
            graph.erase_node(node)
    # Attributes first would put them between the inputs, which fx does not allow.
    inputs = graph.find_nodes(op="placeholder")
    for node in reversed(inputs):
        next(iter(graph.nodes)).prepend(node)


def _without_rule(result: Any) -> Any:
    """Stand-in moments for the result of an op without a rule; refused later if anything asks for them."""
    if isinstance(result, list | tuple):
        return [_without_rule(item) for item in result]
    if isinstance(result, Tensor) and result.is_floating_point():
        return Moments(result, torch.zeros_like(result))
    return result


def _has_moments(value: Any) -> bool:
    if is_random(value):
        return True
    if isinstance(value, list | tuple):
        return any(map(_has_moments, value))
    return isinstance(value, dict) and any(map(_has_moments, value.values()))

