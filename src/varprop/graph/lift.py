"""A captured graph lifted to moments: a flat graph of plain tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

from varprop.graph.captured import Captured, drop_dead_code, format_args, sizes_of
from varprop.graph.interpreter import OUTPUT, Applied, Interpreter, first_input, has_moments
from varprop.graph.kernel_choice import kernel_call, pointwise_rule
from varprop.graph.registry import Registries, scale_path
from varprop.graph.signature import Signature, random_inputs
from varprop.graph.term_counts import SYMBOLIC
from varprop.graph.trace_cache import TraceCache, fake_mode_of, require_free_sizes
from varprop.kernels.activations import activate
from varprop.kernels.factored_ops import FUSED
from varprop.kernels.launch import runs_on
from varprop.moments import Factored, Moments, is_random, multiplied_out
from varprop.rules.factorization import products_of
from varprop.rules.ruleset import Rule, RuleSet, with_backend

aten = torch.ops.aten


@dataclass
class Lifted:
    """A flat graph of plain tensors, whose placeholders are the leaves of the call."""

    graph: fx.Graph
    signature: Signature
    applied: list[Applied]
    scales: list[str]  # names of the scales that matter, in graph order


def lift(captured: Captured, rules: RuleSet, tensors: Registries) -> Lifted:
    """Write a flat graph, op by op, and drop what nothing asks for.

    Constants and pointwise rules that it needs are added to ``tensors``; of scales it only has the names.
    """
    lifter = _Lifter(captured, rules, tensors)
    with require_free_sizes(lifter.traces.mode):
        lifter.write()
    graph = lifter.graph
    drop_dead_code(graph)
    for index in _untag(graph):
        lifter.applied[index].needed = True
    used = {node.target for node in graph.find_nodes(op="get_attr")}
    names = dict.fromkeys((*lifter.interpreter.scale_names.values(), OUTPUT))
    scales = [name for name in names if f"scale.{scale_path(name)}" in used]
    return Lifted(graph, _signature(captured, graph), lifter.applied, scales)


def tag(var: Any, index: int) -> Any:
    """Tags the variance of the index-th op; tags still there after dead-code removal are of those asked for."""
    return var


class _Lifter:
    """Interprets a captured graph on nodes of a new graph: Moments of two nodes where a value is random."""

    def __init__(self, captured: Captured, rules: RuleSet, tensors: Registries) -> None:
        self.captured, self.tensors, self.graph = captured, tensors, fx.Graph()
        # Without Triton, and in what compilers fuse on a CPU, norms and attention are better written out.
        self.accelerated = runs_on(tensors.device)
        self.interpreter = Interpreter(captured, with_backend(rules, FUSED) if self.accelerated else rules, tensors)
        self.pointwise: dict[fx.Node, str] = {}
        for node in self.interpreter.scale_names:
            if name := pointwise_rule(node, rules[node.target], tensors.pointwise):  # type: ignore[index]
                self.pointwise[node] = name
        self.traces = TraceCache(self.graph, fake_mode_of(captured.graph), tensors.constant)
        self.applied: list[Applied] = []
        self.products: dict[Any, Moments] = {}  # by their coefficients

    def write(self) -> None:
        values = dict(self._bind())
        for node in self.captured.ops():
            values[node] = self._step(node, values)
        result = self._multiplied_out(values[self.captured.output])
        self.graph.output(tuple(self._scaled(result, OUTPUT)) if is_random(result) else (result,))

    def _bind(self) -> Iterator[tuple[fx.Node, Any]]:
        for node, random in zip(self.captured.inputs, random_inputs(self.captured.structure), strict=True):
            parts = [self._like(self.graph.placeholder(node.name + end), node) for end in ("", "_var")[: 1 + random]]
            yield node, Moments(*parts) if random else parts[0]
        for node, (kind, path) in self.captured.tensors.items():
            kinds = ("mean", "var") if kind == "mean" and path in self.tensors.var else (kind,)
            parts = [self._like(self.graph.get_attr(f"{name}.{path}"), node) for name in kinds]
            yield node, Moments(*parts) if len(parts) > 1 else parts[0]

    def _step(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        inputs = {arg: values[arg] for arg in node.all_input_nodes}
        args: Any = node.args
        if node.target is operator.getitem and not is_random(source := inputs[args[0]]):
            return source[args[1]] if isinstance(source, list | tuple) else self.traces.copy(node, values)
        reaches = has_moments(list(inputs.values()))
        if reaches:
            rule, result = self._apply(node, inputs)
        else:
            rule, result = None, self._plain(node, inputs)
        self.applied.append(Applied(node, rule, reaches, has_moments(result)))
        return self._tagged(result)

    def _plain(self, node: fx.Node, inputs: dict[fx.Node, Any]) -> Any:
        """An op that no variance reaches stays as it is, but for views: they rely on strides that a rule may change."""
        if node.target is aten.view.default:
            new = self.traces.copy(node, inputs)
            new.target = aten.reshape.default
            return new
        if isinstance(node.target, torch._ops.OpOverload) or isinstance(node.meta.get("val"), SYMBOLIC):
            return self.traces.copy(node, inputs)
        return self._apply(node, inputs)[1]

    def _apply(self, node: fx.Node, inputs: dict[fx.Node, Any]) -> tuple[Rule | None, Any]:
        rule = self.interpreter.rules.get(node.target)  # type: ignore[arg-type]
        name = self.pointwise.get(node)
        module: Any = self.tensors.pointwise[name] if name and self.accelerated else None  # takes factored variances
        if rule is None or not (rule.factored or module is not None):
            inputs = {arg: self._multiplied_out(value) for arg, value in inputs.items()}
        first: Any = first_input(node) if node in self.interpreter.scale_names else None
        x: Any = inputs.get(first)
        scale = self._scale(self.interpreter.scale_names[node]) if is_random(x) else None
        if module is not None and isinstance(x, Factored):
            as_tokens, parts = self.traces.write("tokens", products_of, x)
            if as_tokens:
                mean, numbers, *vectors = parts
                arguments = mean, numbers, scale, *vectors, None, None, False, module.key
                call = self.graph.call_function(activate, arguments)
                return rule, self._both(call, node)
            inputs[first] = x = parts
        args, kwargs = fx.map_arg((node.args, node.kwargs), inputs.__getitem__)
        if name and scale is not None:
            return rule, self._both(self.graph.call_module(f"pointwise.{name}", (*x, scale)), node)
        if self.accelerated and rule is not None and (kernel := kernel_call(node, rule, args, kwargs, scale)):
            return rule, self._both(self.graph.call_function(*kernel), node)
        if is_random(x):
            inputs[first] = self._scaled(x, self.interpreter.scale_names[node])

        def apply(*values: Any) -> tuple[Rule | None, Any]:
            args, kwargs = fx.map_arg((node.args, node.kwargs), dict(zip(inputs, values, strict=True)).__getitem__)
            return self.interpreter.apply(node, *args, **kwargs)

        names = {arg: f"%{index}" for index, arg in enumerate(inputs)}
        return self.traces.write(
            f"{id(node.target)}{format_args((node.args, node.kwargs), names, _text)}", apply, *inputs.values()
        )

    def _both(self, call: fx.Node, node: fx.Node) -> Moments:
        """The two results of a kernel for ``node``."""
        return Moments(*(self._like(self.graph.call_function(operator.getitem, (call, i)), node) for i in range(2)))

    def _scale(self, name: str) -> fx.Node:
        return self.graph.get_attr(f"scale.{scale_path(name)}")

    def _scaled(self, x: Moments, name: str) -> Moments:
        factor = self.graph.call_function(aten.exp.default, (self._scale(name),))
        return x.map_var(lambda var: self._like(self.graph.call_function(aten.mul.Tensor, (var, factor)), var))

    def _multiplied_out(self, value: Any) -> Any:
        """With factored variances multiplied out, each once."""

        def multiplied(x: Any) -> Any:
            if not isinstance(x, Factored):
                return x
            if x.coefficients not in self.products:
                self.products[x.coefficients] = self.traces.write("products", lambda x: (None, multiplied_out(x)), x)[1]
            return self.products[x.coefficients]

        return tree_map(multiplied, value, is_leaf=is_random)

    def _tagged(self, result: Any) -> Any:
        def tagged(item: Any) -> Any:
            if not is_random(item):
                return item
            return item.map_var(lambda var: self._like(self.graph.call_function(tag, (var, index)), var))

        index = len(self.applied) - 1
        return tree_map(tagged, result, is_leaf=is_random)

    def _like(self, node: fx.Node, other: Any) -> Any:
        node.meta["val"] = other.meta["val"]
        return node


def _text(value: Any) -> str:
    return value.code if isinstance(value, fx.GraphModule) else repr(value)


def _signature(captured: Captured, graph: fx.Graph) -> Signature:
    inputs = graph.find_nodes(op="placeholder")
    sizes = tuple(sizes_of(node) for node in inputs)
    batch, free = {shape[0] for shape in sizes if shape}, {size for shape in sizes for size in shape}
    # Export assumes at least 2 of everything free; a batch of 1 is safe, because views were lifted as reshapes.
    ranges = {s: (1 if s in batch else low, high) for s, (low, high) in captured.ranges.items() if s in free}
    return Signature(captured.structure, tuple(node.meta["val"].dtype for node in inputs), sizes, ranges)


def _untag(graph: fx.Graph) -> set[int]:
    """Remove the tags; those that survived dead-code removal tell which variances are needed."""
    alive = set()
    for node in list(graph.nodes):
        if node.target is tag:
            alive.add(node.args[1])
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return alive
