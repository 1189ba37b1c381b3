"""An interpreter of captured graphs on moments: a rule per op."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_any, tree_leaves

from varprop.errors import RuleError
from varprop.graph.captured import Captured, module_path, numbered, place_of, reachable
from varprop.graph.registry import Registries, Registry, scale_path
from varprop.graph.signature import random_inputs
from varprop.moments import Moments, is_random, multiplied_out
from varprop.rules.ruleset import Rule, RuleSet, op_name
from varprop.rules.structural import mean_args

OUTPUT = "(output)"
"""The name of the scale on the variance of the network's output."""


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


class Interpreter:
    """Applies a rule to each op of a captured graph. Run on real tensors it is the reference for the lifted graph."""

    def __init__(self, captured: Captured, rules: RuleSet, tensors: Registries) -> None:
        self.captured, self.rules, self.tensors = captured, rules, tensors
        self.scale_names = scale_names(captured, rules, tensors.var)

    def run(self, *leaves: Tensor) -> dict[fx.Node, Any]:
        """The value of every node: Moments where it is random, else what the model computes there."""
        values: dict[fx.Node, Any] = dict(self._bind(iter(leaves)))
        for node in self.captured.ops():
            inputs = {arg: values[arg] for arg in node.all_input_nodes}
            self._scale_first(node, inputs)
            args, kwargs = fx.map_arg((node.args, node.kwargs), inputs.__getitem__)
            values[node] = self.apply(node, *args, **kwargs)[1]
        return values

    def _bind(self, leaves: Iterator[Tensor]) -> Iterator[tuple[fx.Node, Any]]:
        for node, (kind, path) in self.captured.tensors.items():
            tensor = getattr(self.tensors, kind)[path]
            random = kind == "mean" and path in self.tensors.var
            yield node, Moments(tensor, self.tensors.var[path]) if random else tensor
        for node, random in zip(self.captured.inputs, random_inputs(self.captured.structure), strict=True):
            value = next(leaves)
            yield node, Moments(value, next(leaves)) if random else value

    def apply(self, node: fx.Node, *args: Any, **kwargs: Any) -> tuple[Rule | None, Any]:
        """What becomes of the arguments of an op, and by which rule; None if there is none, or nothing is random."""
        op: Any = node.target
        if op is operator.getitem and not is_random(args[0]):
            return None, args[0][args[1]]
        if not has_moments((args, kwargs)):
            return None, op(*args, **kwargs)
        rule = self.rules.get(op)
        if rule is None or not rule.factored:
            args, kwargs = multiplied_out((args, kwargs))
        able = rule is not None and (rule.takes_complex or not _has_complex((args, kwargs)))
        result = _use(rule, node, args, kwargs) if rule is not None and able else NotImplemented
        if result is NotImplemented:
            args, kwargs = multiplied_out((args, kwargs))
            return None, _without_rule(op(*mean_args(args), **mean_args(kwargs)), _nothing((args, kwargs)))
        return rule, result

    def _scale_first(self, node: fx.Node, inputs: dict[fx.Node, Any]) -> None:
        """Scale the variance of the op's input; a random weight or bias beside it keeps its own."""
        if node not in self.scale_names:
            return
        first, path = first_input(node), scale_path(self.scale_names[node])
        if is_random(inputs[first]) and path in self.tensors.scale:  # nothing asks for a variance that has no scale
            factor = self.tensors.scale[path].exp()
            inputs[first] = inputs[first].map_var(lambda var: var * factor)


def first_input(node: fx.Node) -> Any:
    """The first argument that is computed; None if there is none."""
    return next((arg for arg in node.args if isinstance(arg, fx.Node)), None)


def _use(rule: Rule, node: fx.Node, args: Any, kwargs: Any) -> Any:
    try:
        result = rule(*args, **kwargs)
        for part in result if isinstance(result, list) else (result,):
            if isinstance(part, Moments) and [*map(str, part.mean.shape)] != [*map(str, part.var.shape)]:
                raise RuleError(f"its mean has shape {list(part.mean.shape)}, its variance {list(part.var.shape)}")
        return result
    except Exception as error:
        raise RuleError(f"rule {rule.name!r} for {op_name(node.target)} failed at {place_of(node)}: {error}") from error


def scale_names(captured: Captured, rules: RuleSet, var: Registry) -> dict[fx.Node, str]:
    """Name the scale of every op whose rule says it is scaled, where variance can reach it: ``path``, ``path#2``, …

    The steps of a recurrent cell share theirs, ``path.role``.
    """
    reached = reachable(captured.graph, captured.sources(var))
    counts: Counter[str] = Counter()
    names = {}
    for node in captured.ops():
        rule = rules.get(node.target)  # type: ignore[arg-type]
        if rule is not None and rule.scaled:
            path, role = module_path(node), node.meta.get("role")
            counts[path] += role is None  # of all, reached or not, so that names do not depend on the posterior
            if first_input(node) in reached:
                names[node] = numbered(path, counts[path]) if role is None else f"{path}.{role}".removeprefix(".")
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


def _has_complex(value: Any) -> bool:
    return tree_any(lambda item: is_random(item) and item.mean.is_complex(), value, is_leaf=is_random)


def has_moments(value: Any) -> bool:
    return tree_any(is_random, value, is_leaf=is_random)
