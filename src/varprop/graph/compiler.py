"""From a model to a module that computes the moments of its output: all the steps, in order."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from varprop.errors import OutputError, RuleError, UnsupportedOpError, VarpropError
from varprop.graph.captured import Captured, place_of
from varprop.graph.diagnostics import capture_error
from varprop.graph.export import Lifting, export, is_traced, quiet, read_values
from varprop.graph.fold import fold
from varprop.graph.fuse import fuse
from varprop.graph.interpreter import Applied
from varprop.graph.lift import lift
from varprop.graph.masks import simplify_masks
from varprop.graph.merge import merge_products
from varprop.graph.peephole import simplify
from varprop.graph.registry import REGISTRY_NAMES, Registries
from varprop.graph.regroup import regroup
from varprop.graph.runner import Runner, offload
from varprop.graph.signature import Call, Signature, Size, free_sizes
from varprop.graph.uniform import sum_uniform
from varprop.kernels.launch import runs_on
from varprop.rules.ruleset import op_name


@dataclass(frozen=True, eq=False)
class Plan:
    """One compiled call, ready to run."""

    call: Call  # an outline, to compile it again after ``.to()`` or on another machine
    signature: Signature  # all the calls it serves
    captured: Captured
    applied: list[Applied]
    module: fx.GraphModule
    checked: set[Any] = field(default_factory=set)  # the sizes for which it was seen to be the model
    offloaded: dict[torch.device, fx.GraphModule] = field(default_factory=dict)

    @functools.cached_property
    def run(self) -> Runner:
        """The module, but faster where it is not compiled."""
        return Runner(self.module)

    def run_on(self, device: torch.device, leaves: list[Tensor]) -> Any:
        """The module, with its tensors brought to another device as they are used; results come back from there."""
        if device not in self.offloaded:
            self.offloaded[device] = offload(self.module, device)
        return [result.to(leaves[0].device) for result in self.offloaded[device](*leaves)]

    @property
    def dead_end(self) -> str:
        """Where variance ends last, if none reaches the output though some was on its way there."""
        if len(self.module.graph.output_node().args[0]) > 1:  # type: ignore[arg-type]
            return ""
        last = next((entry.node for entry in reversed(self.applied) if entry.reaches and not entry.leaves), None)
        return "" if last is None else f"{op_name(last.target)} at {place_of(last)}"

    def serves(self, call: Call, tensors: Registries) -> bool:
        """Is it a graph of this call? Guards are not looked at while compiling."""
        if not self.signature.accepts(call):
            return False
        guards = self.captured.guards
        return guards is None or is_traced() or not guards.broken(tensors, call.inputs)


def compile_call(lifting: Lifting, call: Call, sizes: list[tuple[Size, ...]], values: list[Any] | None = None) -> Plan:
    """Model → graph → regrouped → lifted → folded → module, a line each."""
    captured = export(lifting, call, sizes, values)  # a functional graph of ATen ops
    simplify_masks(captured, lifting.tensors)  # masks that mask nothing are left out
    regroup(captured, captured.sources(lifting.tensors.var))  # written-out functions become the one function they are
    return plan_captured(lifting, captured, call)


def plan_captured(lifting: Lifting, captured: Captured, call: Call) -> Plan:
    """The steps that need the model no more."""
    tensors, rules = lifting.tensors, lifting.rules
    lifted = lift(captured, rules, tensors)  # a rule per op: a flat graph of means and variances
    lifting.require(lifted.applied, type(lifting.model).__name__, rules)  # by default, every rule that is needed
    sum_uniform(lifted.graph, tensors)  # no product with variances that are all the same
    if runs_on(tensors.device):
        merge_products(lifted.graph)  # the projections of an attention block are one product
    fold(lifted.graph, tensors)  # what depends on weights alone is computed once
    simplify(lifted.graph)  # no copies, and sums of products in one place
    module = assemble(lifted.graph, tensors)  # a plain module, which shares the network's tensors
    tensors.add_scales(lifted.scales)
    if runs_on(tensors.device):
        fuse(module, tensors.pointwise)  # pointwise steps that follow each other are one
    return Plan(call.outline(), lifted.signature, captured, lifted.applied, module)


def plan_call(lifting: Lifting, call: Call, *, free: bool = True) -> Plan:
    """Compile a call, with batch size and lengths free if the model allows it. Errors name who is at fault."""
    try:
        with quiet():
            if free and (plan := _try_free(lifting, call)):
                return plan
            return _fixed(lifting, call)
    except Exception as error:
        raise capture_error(lifting.model, call, error) from error


def _fixed(lifting: Lifting, call: Call) -> Plan:
    """A graph for these sizes alone; if the model reads values of its inputs, for these values alone."""
    sizes: list[tuple[Size, ...]] = [tuple(x.shape) for x in call.inputs]
    try:
        return compile_call(lifting, call, sizes)
    except Exception as error:
        if isinstance(error, UnsupportedOpError | OutputError | torch.OutOfMemoryError):
            raise
        values = read_values(lifting, call)
        if not values:
            raise
        return compile_call(lifting, call, sizes, values)


def _try_free(lifting: Lifting, call: Call) -> Plan | None:
    """Not every model exports with free sizes, and some fix them at other values than these: then each set of sizes
    gets a graph of its own.
    """
    try:
        plan = compile_call(lifting, call, free_sizes(call.inputs))
    except Exception as error:
        if isinstance(error, VarpropError | torch.OutOfMemoryError) and not isinstance(error, RuleError):
            raise
        return None
    return plan if plan.signature.accepts(call) else None


def assemble(graph: fx.Graph, tensors: Registries) -> fx.GraphModule:
    """A module around ``graph`` that shares the registries of ``tensors`` instead of copying from them."""
    module = fx.GraphModule(nn.Module(), fx.Graph())
    for name in REGISTRY_NAMES:
        setattr(module, name, getattr(tensors, name))
    module.graph = graph
    return module
