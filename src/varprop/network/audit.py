"""Which rule acts where: every op of a model, what becomes of its variance, and what is missing."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, fx, nn

from varprop.graph.captured import module_class, module_path, source_line
from varprop.graph.compiler import Plan, plan_call
from varprop.graph.interpreter import Applied
from varprop.graph.output import Output
from varprop.moments import Moments
from varprop.network.moment_net import MomentNet, require_posterior
from varprop.network.noise import shared_noise
from varprop.posterior import Posterior
from varprop.rules import CVP, RuleSet
from varprop.rules.ruleset import Rule, op_name


@dataclass(frozen=True)
class Row:
    """One op of the model."""

    op: str
    path: str
    module: str
    line: str
    rule: str
    """Name of the rule; empty where no variance reaches the op or no rule exists."""
    variance: str
    """``none`` reaches it, it ``starts`` here, ``flows`` through, ``stops`` here, or is ``unused`` further on."""
    exactness: str
    """``exact``, ``independent``, ``approximate``, ``missing``, or empty where no variance comes or is asked for.

    ``exact`` is meant for independent Gaussian inputs; ``independent`` is a rule that would be exact if its inputs were
    independent, which they are not.
    """
    note: str
    """What is neglected."""


@dataclass(frozen=True)
class Audit:
    """A table of every op of a model, in the order they run. ``print`` it, or iterate over its rows."""

    model: str
    rules: str
    rows: tuple[Row, ...]

    @property
    def missing(self) -> tuple[Row, ...]:
        """Ops that need a rule and have none: ``propagate`` refuses the model while there are any."""
        return tuple(row for row in self.rows if row.exactness == "missing")

    @property
    def approximate(self) -> tuple[Row, ...]:
        """Ops whose rule neglects something even if its inputs are independent."""
        return tuple(row for row in self.rows if row.exactness == "approximate")

    @property
    def independent(self) -> tuple[Row, ...]:
        """Ops whose rule is exact for independent inputs, while here they share noise."""
        return tuple(row for row in self.rows if row.exactness == "independent")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        header = ("op", "module", "rule", "variance", "exactness", "note")
        table = [
            (row.op, row.path or f"({row.module})", row.rule, row.variance, row.exactness, row.note)
            for row in self.rows
        ]
        counts = ", ".join(f"{len(getattr(self, kind))} {kind}" for kind in ("approximate", "independent", "missing"))
        title = f"{self.model} under {self.rules}: {len(self.rows)} ops, {counts}"
        legend = "exact: for independent Gaussian inputs; independent: exact if its inputs were, but they share noise"
        return "\n".join([title, tabulate(table, header, tablefmt="plain", disable_numparse=True), legend])


def audit(
    model: nn.Module, posterior: Posterior, *args: Any, rules: RuleSet = CVP, output: Output = None, **kwargs: Any
) -> Audit:
    """Tell what ``propagate(model, posterior, rules)(*args, **kwargs)`` would do, op by op, without running it."""
    require_posterior(posterior, "audit(model, posterior, *inputs)")
    net = MomentNet(model, posterior, rules, output)
    lifting = replace(net.lifting, require=lambda *_: None)
    return audit_of(net, plan_call(lifting, net.bind(args, kwargs)))


def audit_of(net: MomentNet, plan: Plan) -> Audit:
    """The table of a call that is compiled already."""
    starts = plan.captured.sources(net.var)
    shared = shared_noise(plan.captured, plan.applied, starts)
    weights = {
        node: Moments(net.mean[path], net.var[path]) if path in net.var else net.mean[path]
        for node, (kind, path) in plan.captured.tensors.items()
        if kind == "mean"
    }
    rows = tuple(_row(entry, set(starts), shared, weights) for entry in plan.applied if _computes(entry.node))
    return Audit(type(net.lifting.model).__name__, net.rules.name, rows)


def _computes(node: fx.Node) -> bool:
    """Ops on tensors; arithmetic on sizes is left out."""
    value = node.meta.get("val")
    return not isinstance(value, int | torch.SymInt)


def _row(entry: Applied, starts: set[fx.Node], shared: dict[fx.Node, list[str]], weights: dict[fx.Node, Any]) -> Row:
    """``shared`` has an entry for every op whose result is random: see ``shared_noise``."""
    node, rule = entry.node, entry.rule
    random = starts | shared.keys()
    exactness, note = _judge(entry, random, shared.get(node, []), weights)
    return Row(
        op=op_name(node.target),
        path=module_path(node),
        module=module_class(node),
        line=source_line(node),
        rule=rule.name if rule else "",
        variance=_variance(entry, starts, random),
        exactness=exactness,
        note=note,
    )


def _variance(entry: Applied, starts: set[fx.Node], random: set[fx.Node]) -> str:
    if not entry.reaches:
        return "none"
    if not entry.leaves:
        return "stops"
    if not entry.needed:
        return "unused"
    return "flows" if any(arg in random and arg not in starts for arg in entry.node.all_input_nodes) else "starts"


def _judge(entry: Applied, random: set[fx.Node], shared: list[str], weights: dict[fx.Node, Any]) -> tuple[str, str]:
    if not entry.reaches or (entry.leaves and not entry.needed and not _decides(entry.node)):
        return "", ""
    if entry.rule is None:
        return "missing", f"write one with @vp.rule({op_name(entry.node.target)})"
    neglected = _neglected(entry.rule, entry.node, random, weights)
    kind = "approximate" if neglected else "independent" if shared else "exact"
    return kind, "; ".join([neglected, *shared] if neglected else shared)


def _decides(node: fx.Node) -> bool:
    """Does the op choose places, as the ``topk`` of a router does, even if nothing asks for the values there?"""
    chosen = (user.meta.get("val") for user in node.users if user.target is operator.getitem)
    return any(isinstance(value, Tensor) and not value.is_floating_point() for value in chosen)


def _neglected(rule: Rule, node: fx.Node, random: set[fx.Node], weights: dict[fx.Node, Any]) -> str | None:
    """What the rule neglects, given the weights, the shapes of its other arguments and which of them are random."""

    def value(arg: fx.Node) -> Any:
        if arg in weights:
            return weights[arg]
        example = arg.meta.get("val")
        return Moments(example, example) if arg in random and isinstance(example, Tensor) else example

    return rule.neglects(*fx.map_arg(node.args, value), **fx.map_arg(node.kwargs, value))
