"""Trace the walk of a captured graph into a flat graph of plain tensors."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import torch
from tabulate import tabulate
from torch import fx

from varprop.errors import UnsupportedOpError
from varprop.graph.captured import (
    Captured,
    drop_dead_code,
    module_class,
    module_path,
    size_ranges,
    sizes_of,
    source_line,
    strip_assertions,
)
from varprop.graph.export import keep_constant
from varprop.graph.registry import Registries, Registry, scale_path
from varprop.graph.signature import Call, Signature, Structure, dynamic_shapes, random_inputs, stand_in
from varprop.graph.walk import OUTPUT, Applied, Walk
from varprop.rules.ruleset import RuleSet, op_name


@dataclass
class Lifted:
    """A flat graph of plain tensors, whose placeholders are the leaves of the call."""

    graph: fx.Graph
    signature: Signature
    applied: list[Applied]
    scales: list[str]  # names of the scales that matter, in graph order


def lift(captured: Captured, rules: RuleSet, tensors: Registries, call: Call) -> Lifted:
    """Trace the walk into a flat graph and drop what nothing asks for.

    Constants and pointwise rules that it needs are added to ``tensors``; of scales it only has the names.
    """
    walk = Walk(captured, rules, tensors, tracing=True)
    names = [*walk.scale_names.values(), OUTPUT]
    walk.scale = Registry()  # stand-ins for all scales there may be; those that prove to matter are made later
    for name in names:
        walk.scale[scale_path(name)] = torch.zeros((), dtype=tensors.dtype, device=tensors.device)
    for node in walk.scale_names:
        walk.bodies.prepare(node, rules[node.target], tensors.device)  # type: ignore[index]
    leaves, sizes = [], []
    for node, x, random in zip(captured.inputs, call.inputs, random_inputs(call.structure), strict=True):
        for _ in range(2 if random else 1):  # export takes equal tensors for one input
            leaves.append(stand_in(x, sizes_of(node)))
            sizes.append(sizes_of(node))
    program = torch.export.export(walk, tuple(leaves), strict=False, dynamic_shapes=(dynamic_shapes(sizes),))
    graph = program.graph
    graph.owning_module = None  # its attributes are those of the network, not of the exported program
    walk.bodies.place(graph)
    strip_assertions(graph)
    for index in _untag(graph):
        walk.journal.entries[index].needed = True
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
    for placeholder, target in targets.items():
        if target in program.constants and "." not in target:  # made by a rule, such as the nodes of a quadrature
            targets[placeholder] = f"constant.{keep_constant(program.constants[target], tensors.constant)}"
    inputs = [node for node in graph.find_nodes(op="placeholder") if node.name not in targets]
    signature = _signature(call.structure, inputs, program)
    _name_tensors(graph, targets)
    used = {node.target for node in graph.find_nodes(op="get_attr")}
    scales = [name for name in names if f"scale.{scale_path(name)}" in used]
    return Lifted(graph, signature, walk.journal.entries, scales)


def require_rules(lifted: Lifted, model: str, rules: RuleSet) -> None:
    """Raise one error that lists every op whose variance is needed but has no rule."""
    gaps = [entry.node for entry in lifted.applied if entry.missing and entry.needed]
    if not gaps:
        return
    rows = [
        (op_name(n.target), f"at {module_path(n) or '(top level)'} ({module_class(n)})", source_line(n)) for n in gaps
    ]
    table = textwrap.indent(tabulate(list(dict.fromkeys(rows)), tablefmt="plain", disable_numparse=True), "  ")
    plural = "op has" if len(gaps) == 1 else "ops have"
    raise UnsupportedOpError(
        f"{len(gaps)} {plural} no variance rule in {rules.name}, but variance flows there in {model}\n{table}\n"
        f"Write one with @vp.rule({rows[0][0]}): see docs/add_a_rule.md. "
        "Or let only parameters behind them be random: posterior.restrict(...) names those that stay random."
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
            node.op, node.target = "get_attr", targets[node.name]
    drop_dead_code(graph)
    # Attributes first would put them between the inputs, which fx does not allow.
    for node in reversed(graph.find_nodes(op="placeholder")):
        next(iter(graph.nodes)).prepend(node)
