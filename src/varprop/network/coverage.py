"""Which rule acts where: every op of a model, what becomes of its variance, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from varprop.graph.export import Captured, Output, module_class, module_path, source_line
from varprop.graph.signature import random_leaves
from varprop.graph.walk import Applied, random_sources
from varprop.network.moment_net import MomentNet
from varprop.posterior import Posterior
from varprop.rules import CVP, RuleSet
from varprop.rules.ruleset import op_name
from varprop.rules.structural import STRUCTURAL
from varprop.tables import aligned


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
    """``exact``, ``approximate``, ``missing``, or empty where no variance reaches the op or none is asked for."""
    note: str
    """What is approximate."""


@dataclass(frozen=True)
class Coverage:
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
        return tuple(row for row in self.rows if row.exactness == "approximate")

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
        count = f"{len(self.approximate)} approximate, {len(self.missing)} missing"
        return "\n".join([f"{self.model} under {self.rules}: {len(self.rows)} ops, {count}", *aligned(header, table)])


def coverage(
    model: nn.Module, posterior: Posterior, *args: Any, rules: RuleSet = CVP, output: Output = None, **kwargs: Any
) -> Coverage:
    """Tell what ``propagate(model, posterior, rules)(*args, **kwargs)`` would do, op by op, without running it."""
    net = MomentNet(model, posterior, rules, output)
    structure, leaves = net.flatten(args, kwargs)
    captured, lifted, _ = net.lift(structure, leaves)
    random = [path for path in captured.parameters.values() if path in net.var]
    starts = random_sources(captured, random, random_leaves(structure))
    shared = _shared_sources(captured, lifted.applied, starts)
    rows = tuple(_row(entry, set(starts), shared) for entry in lifted.applied if _computes(entry.node))
    return Coverage(type(model).__name__, rules.name, rows)


def _computes(node: fx.Node) -> bool:
    """Ops on tensors; arithmetic on sizes is left out."""
    value = node.meta.get("val")
    return not isinstance(value, int | torch.SymInt)


def _row(entry: Applied, starts: set[fx.Node], shared: set[fx.Node]) -> Row:
    node, rule = entry.node, entry.rule
    exactness, note = _judge(entry, node in shared)
    return Row(
        op=op_name(node.target),
        path=module_path(node),
        module=module_class(node),
        line=source_line(node),
        rule=rule.name if rule else "",
        variance=_variance(entry, starts),
        exactness=exactness,
        note=note,
    )


def _variance(entry: Applied, starts: set[fx.Node]) -> str:
    if not entry.reaches:
        return "none"
    if not entry.leaves:
        return "stops"
    if not entry.needed:
        return "unused"
    begins = any(arg in starts for arg in entry.node.all_input_nodes)
    activations = [arg for arg in entry.node.all_input_nodes if arg not in starts]
    return "starts" if begins and not any(arg.meta.get("random") for arg in activations) else "flows"


def _judge(entry: Applied, shares: bool) -> tuple[str, str]:
    if not entry.reaches or (entry.leaves and not entry.needed):
        return "", ""
    if entry.rule is None:
        return "missing", f"write one with @vp.rule({op_name(entry.node.target)})"
    notes = [note for note in (entry.rule.approximation,) if note]
    if shares:
        notes.append("its operands share a source and are treated as independent")
    return ("approximate", "; ".join(notes)) if notes else ("exact", "")


def _operands(node: fx.Node) -> list[fx.Node]:
    """The inputs of an op, a tensor it takes twice twice."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def _shared_sources(captured: Captured, applied: list[Applied], starts: list[fx.Node]) -> set[fx.Node]:
    """Ops that combine operands which depend on the same random tensor."""
    sources: dict[fx.Node, frozenset[fx.Node]] = {node: frozenset([node]) for node in starts}
    leaves = {entry.node: entry.leaves for entry in applied}
    found = set()
    for node in captured.ops():
        inherited = [sources[arg] for arg in _operands(node) if arg in sources]
        node.meta["random"] = leaves.get(node, bool(inherited))
        if not node.meta["random"]:
            continue
        sources[node] = frozenset().union(*inherited)
        if sum(map(len, inherited)) > len(sources[node]) and node.target not in STRUCTURAL:
            found.add(node)
    return found
