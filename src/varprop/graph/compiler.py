"""From a model to a module that computes the moments of its output: all the steps, in order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from varprop.errors import CaptureError, OutputError, RuleError, UnsupportedOpError, VarpropError
from varprop.graph.captured import Captured, place_of
from varprop.graph.check import difference
from varprop.graph.export import capture_error, export, is_traced, quiet, read_values
from varprop.graph.fold import fold
from varprop.graph.fuse import fuse
from varprop.graph.lift import Lifted, lift, require_rules
from varprop.graph.masks import settle_masks
from varprop.graph.merge import merge_products
from varprop.graph.output import Output
from varprop.graph.refusals import refuse_training
from varprop.graph.registry import Registries
from varprop.graph.regroup import regroup
from varprop.graph.runner import Runner, Stream
from varprop.graph.signature import Call, Signature, Size, free_sizes
from varprop.graph.tidy import tidy
from varprop.graph.walk import Applied
from varprop.kernels.launch import runs_on
from varprop.rules import RuleSet
from varprop.rules.ruleset import op_name

Refusal = Callable[[Lifted, str, RuleSet], None]


@dataclass(frozen=True)
class Lifting:
    """What is compiled: a model, the tensors of a network in place of its own, and the rules that lift it."""

    model: nn.Module
    tensors: Registries
    rules: RuleSet
    output: Output


@dataclass(frozen=True, eq=False)
class Plan:
    """One compiled call, ready to run."""

    call: Call  # an outline, to compile it again after ``.to()`` or on another machine
    signature: Signature  # all the calls it serves
    captured: Captured
    applied: list[Applied]
    module: fx.GraphModule
    checked: set[Any] = field(default_factory=set)  # the sizes for which it was seen to be the model
    streams: dict[torch.device, Stream] = field(default_factory=dict)

    @functools.cached_property
    def run(self) -> Runner:
        """The module, but faster where it is not compiled."""
        return Runner(self.module)

    def run_on(self, device: torch.device, leaves: list[Tensor]) -> Any:
        """The module, with its tensors brought to another device as they are used; results come back from there."""
        if device not in self.streams:
            self.streams[device] = Stream(self.module, device)
        return [result.to(leaves[0].device) for result in self.streams[device](*leaves)]

    @property
    def dead_end(self) -> str:
        """Where variance ends last, if none reaches the output though some was on its way there."""
        if len(self.module.graph.output_node().args[0]) > 1:  # type: ignore[arg-type]
            return ""
        last = next((entry.node for entry in reversed(self.applied) if entry.reaches and not entry.leaves), None)
        return "" if last is None else f"{op_name(last.target)} at {place_of(last)}"

    def has_checked(self, call: Call) -> bool:
        return call.sizes in self.checked

    def serves(self, call: Call, tensors: Registries) -> bool:
        """Is it a graph of this call? Values it was captured with are not looked at while compiling."""
        if not self.signature.accepts(call):
            return False
        pins = self.captured.pins
        return pins is None or is_traced() or not pins.broken(tensors, call.inputs)


def compile_call(
    lifting: Lifting, call: Call, sizes: list[tuple[Size, ...]], refuse: Refusal, seen: list[Any] | None = None
) -> Plan:
    """Model → graph → regrouped → lifted → folded → module, a line each."""
    model, tensors, rules, output = lifting.model, lifting.tensors, lifting.rules, lifting.output
    captured = export(model, tensors, output, call, sizes, rules, seen)  # a functional graph of ATen ops
    settle_masks(captured, tensors)  # masks that mask nothing are left out
    regroup(captured, captured.sources(tensors.var))  # written-out functions become the one function they are
    return plan_captured(lifting, captured, call, refuse)


def plan_captured(lifting: Lifting, captured: Captured, call: Call, refuse: Refusal = require_rules) -> Plan:
    """The steps that need the model no more."""
    tensors, rules = lifting.tensors, lifting.rules
    lifted = lift(captured, rules, tensors)  # a rule per op: a flat graph of means and variances
    refuse(lifted, type(lifting.model).__name__, rules)  # by default, if a rule is missing where variance is asked for
    if runs_on(tensors.device):
        merge_products(lifted.graph)  # the projections of an attention block are one product
    fold(lifted.graph, tensors)  # what depends on weights alone is computed once
    tidy(lifted.graph)  # no copies, and sums of products in one place
    module = assemble(lifted.graph, tensors)  # a plain module, which shares the network's tensors
    tensors.add_scales(lifted.scales)
    if runs_on(tensors.device):
        fuse(module, tensors.pointwise)  # pointwise steps that follow each other are one
    return Plan(call.outline(), lifted.signature, captured, lifted.applied, module)


def plan_call(lifting: Lifting, call: Call, refuse: Refusal = require_rules, *, free: bool = True) -> Plan:
    """Compile a call, with batch size and lengths free if the model allows it. Errors name who is at fault."""
    refuse_training(lifting.model)
    try:
        with quiet():
            if free and (plan := _try_free(lifting, call, refuse)):
                return plan
            return _fixed(lifting, call, refuse)
    except Exception as error:
        raise capture_error(lifting.model, call, error) from error


def _fixed(lifting: Lifting, call: Call, refuse: Refusal) -> Plan:
    """A graph for these sizes alone; if the model reads values of its inputs, for these values alone."""
    sizes: list[tuple[Size, ...]] = [tuple(x.shape) for x in call.inputs]
    try:
        return compile_call(lifting, call, sizes, refuse)
    except Exception as error:
        if isinstance(error, UnsupportedOpError | OutputError | torch.OutOfMemoryError):
            raise
        seen = read_values(lifting.model, lifting.tensors, lifting.output, call)
        if not seen:
            raise
        return compile_call(lifting, call, sizes, refuse, seen)


def _try_free(lifting: Lifting, call: Call, refuse: Refusal) -> Plan | None:
    """Not every model exports with free sizes, and some fix them at other values than these: then each set of sizes
    gets a graph of its own.
    """
    try:
        plan = compile_call(lifting, call, free_sizes(call.inputs), refuse)
    except Exception as error:
        if isinstance(error, VarpropError | torch.OutOfMemoryError) and not isinstance(error, RuleError):
            raise
        return None
    return plan if plan.signature.accepts(call) else None


def check_plan(lifting: Lifting, plan: Plan, call: Call) -> Plan:
    """``plan``, or another for these sizes alone, which was seen to compute what the model computes in this call.

    Free sizes let a graph serve calls it was not captured with, while the model's code may do something else there.
    """
    if plan.has_checked(call):
        return plan
    if plan.captured.pins and (reason := plan.captured.pins.broken(lifting.tensors, call.inputs)):
        raise CaptureError(f"{type(lifting.model).__name__} cannot be captured in this call: {reason}")
    if _difference(lifting, plan, call):
        plan = plan_call(lifting, call, free=False)
        if module := _difference(lifting, plan, call):
            shapes = ", ".join(str(list(shape)) for shape in call.sizes)
            raise CaptureError(
                f"the graph of {type(lifting.model).__name__} is not the model: {module} differs for inputs of shape "
                f"{shapes}. Its forward depends on what no graph holds, such as a state that changes from call to call"
            )
    plan.checked.add(call.sizes)
    return plan


def _difference(lifting: Lifting, plan: Plan, call: Call) -> str | None:
    """Some inputs pass the capture, on fake tensors, and fail on real ones."""
    try:
        return difference(lifting, plan.captured, call)
    except Exception as error:
        raise capture_error(lifting.model, call, error) from error


def assemble(graph: fx.Graph, tensors: Registries) -> fx.GraphModule:
    """A module around ``graph`` that shares the registries of ``tensors`` instead of copying from them."""
    module = fx.GraphModule(nn.Module(), fx.Graph())
    tensors.lend(module)
    module.graph = graph
    return module
