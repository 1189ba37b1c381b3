"""Walk a captured graph and apply a rule per op."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_any, tree_leaves, tree_map

from varprop.errors import RuleError
from varprop.graph.captured import Captured, module_path, numbered, place_of, reachable, sizes_of
from varprop.graph.pointwise import Bodies
from varprop.graph.registry import Registries, Registry, scale_path
from varprop.graph.signature import random_inputs
from varprop.moments import Moments, is_random
from varprop.rules.ruleset import Rule, RuleSet, op_name
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
    """What a walk did. An object of its own, because export undoes what tracing does to a module's lists."""

    entries: list[Applied]


class Walk(nn.Module):
    """Runs a captured graph on moments. Called on real tensors it is the reference for the flat graph."""

    var: Registry
    scale: Registry

    def __init__(self, captured: Captured, rules: RuleSet, tensors: Registries, *, tracing: bool) -> None:
        super().__init__()
        tensors.lend(self)
        self.captured, self.rules, self.tracing = captured, rules, tracing
        self.scale_names = scale_names(captured, rules, tensors.var)
        self.journal, self.bodies = Journal([]), Bodies(tensors.pointwise)

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
            values[node] = self._step(node, args, kwargs)
        return values

    def _bind(self, values: dict[fx.Node, Any], leaves: Iterator[Tensor]) -> None:
        for node, (kind, path) in self.captured.tensors.items():
            tensor = getattr(self, kind)[path]
            values[node] = Moments(tensor, self.var[path]) if kind == "mean" and path in self.var else tensor
        symbols: dict[str, Any] = {}
        for node, random in zip(self.captured.inputs, random_inputs(self.captured.structure), strict=True):
            value = next(leaves)
            values[node] = Moments(value, next(leaves)) if random else value
            if self.tracing:
                self._check_sizes(node, values[node], symbols)

    def _check_sizes(self, node: fx.Node, value: Any, symbols: dict[str, Any]) -> None:
        """Carry over to this trace what capture learnt about the sizes of inputs."""
        for part in value if is_random(value) else (value,):
            for size, expected in zip(part.shape, sizes_of(node), strict=True):
                if isinstance(expected, str):
                    low, high = self.captured.ranges.get(expected, (0, math.inf))
                    torch._check(size >= low)
                    if high < math.inf:
                        torch._check(size <= int(high))
                    torch._check(size == symbols.setdefault(expected, size))

    def _step(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        op: Any = node.target
        if op is operator.getitem and not is_random(args[0]):
            return args[0][args[1]]
        if not _has_moments((args, kwargs)):
            self.journal.entries.append(Applied(node, None, False, False))
            return op(*args, **kwargs)
        rule = self.rules.get(op)
        result = NotImplemented if rule is None else self._use(rule, node, self._scale_first(node, args), kwargs)
        if result is NotImplemented:
            rule, result = None, _without_rule(op(*mean_args(args), **mean_args(kwargs)), _nothing((args, kwargs)))
        self.journal.entries.append(Applied(node, rule, True, _has_moments(result)))
        return self._tagged(result, len(self.journal.entries) - 1) if self.tracing else result

    def _use(self, rule: Rule, node: fx.Node, args: Any, kwargs: Any) -> Any:
        try:
            result = self.bodies.apply(node, args[0]) if node in self.bodies.names else rule(*args, **kwargs)
            for part in result if isinstance(result, list) else (result,):
                if is_random(part) and [*map(str, part.mean.shape)] != [*map(str, part.var.shape)]:
                    raise RuleError(f"its mean has shape {list(part.mean.shape)}, its variance {list(part.var.shape)}")
            return result
        except Exception as error:
            raise RuleError(
                f"rule {rule.name!r} for {op_name(node.target)} failed at {place_of(node)}: {error}"
            ) from error

    def _scale_first(self, node: fx.Node, args: Any) -> Any:
        """Scale the variance of the op's input; a random weight or bias beside it keeps its own."""
        if node not in self.scale_names:
            return args
        position = next(i for i, arg in enumerate(node.args) if isinstance(arg, fx.Node))
        if not is_random(args[position]):
            return args
        scaled = self._scaled(args[position], self.scale_names[node])
        return (*args[:position], scaled, *args[position + 1 :])

    def _scaled(self, x: Moments, name: str) -> Moments:
        return Moments(x.mean, x.var * self.scale[scale_path(name)].exp())

    def _tagged(self, result: Any, index: int) -> Any:
        def tagged(item: Any) -> Any:
            return Moments(item.mean, torch.ops.varprop.tag(item.var, index)) if is_random(item) else item

        return tree_map(tagged, result, is_leaf=is_random)


def scale_names(captured: Captured, rules: RuleSet, var: Registry) -> dict[fx.Node, str]:
    """Name the scale of every op whose rule says it is scaled, where variance can reach it: ``path``, ``path#2``, …"""
    reached = reachable(captured.graph, captured.sources(var))
    counts: Counter[str] = Counter()
    names = {}
    for node in captured.ops():
        rule = rules.get(node.target)  # type: ignore[arg-type]
        if rule is not None and rule.scaled:
            path = module_path(node)
            counts[path] += 1  # of all, reached or not, so that names do not depend on the posterior
            if next((arg for arg in node.args if isinstance(arg, fx.Node)), None) in reached:
                names[node] = numbered(path, counts[path])
    return names


def _without_rule(result: Any, nothing: Tensor) -> Any:
    """Stand-in moments for the result of an op without a rule; refused later if anything asks for them.

    Adding ``nothing`` makes them ask for the variances that came in, so that gaps before this one are found too.
    """
    if isinstance(result, list | tuple):
        return [_without_rule(item, nothing) for item in result]
    if isinstance(result, Tensor) and (result.is_floating_point() or result.is_complex()):
        return Moments(result, torch.zeros_like(result) + nothing.to(result.device))
    return result


def _nothing(value: Any) -> Tensor:
    """0, computed from all variances in ``value``."""
    total = torch.zeros(())
    for item in filter(is_random, tree_leaves(value, is_leaf=is_random)):
        var = item.var.real if item.var.is_complex() else item.var
        total = total.to(var.device) + 0 * var.sum()
    return total


def _has_moments(value: Any) -> bool:
    return tree_any(is_random, value, is_leaf=is_random)
