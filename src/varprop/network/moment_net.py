"""MomentNet: a model lifted to moments, called like the model."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, fx, nn

from varprop.errors import DeviceMismatchError, PrecisionError, RuleError, TrainingModeError, VarpropError
from varprop.graph.export import Captured, Output, capture_error, export, quiet
from varprop.graph.fold import fold
from varprop.graph.lift import Lifted, lift, require_rules
from varprop.graph.pointwise import Pointwise
from varprop.graph.registry import Registry
from varprop.graph.regroup import regroup
from varprop.graph.signature import Binder, Signature, Structure, example, flatten, free_dims, random_leaves
from varprop.graph.walk import OUTPUT, Applied, Tensors, Walk, random_sources, scale_path, scale_points
from varprop.moments import Moments, is_random
from varprop.network import saving
from varprop.network.trace import Trace as Trace
from varprop.posterior import Posterior
from varprop.rules import CVP, RuleSet


@dataclass
class Plan:
    """One captured call signature, ready to run."""

    signature: Signature
    captured: Captured
    applied: list[Applied]
    module: fx.GraphModule
    shapes: list[tuple[int, ...]]  # of the leaves it was captured with

    @property
    def call(self) -> Signature:
        """The call it was captured with, to capture it again after ``.to()`` or on another machine."""
        return Signature(self.signature.structure, self.signature.dtypes, tuple(self.shapes))


class MomentNet(nn.Module):
    """Mean and variance of a model's output in one forward pass. Made by ``propagate``.

    Its tensors: ``mean`` (every parameter), ``var`` (the random ones), ``buffer``, ``scale`` (log α of
    each scale point) and ``folded`` (products of weights alone, not saved).
    """

    def __init__(self, model: nn.Module, posterior: Posterior, rules: RuleSet, output: Output = None) -> None:
        moments = posterior.resolve(model)
        self._set_up(model, rules, output)
        for name, parameter in model.named_parameters():
            mean = moments[name].mean if name in moments else parameter.detach()
            self.mean.set(name, mean.clone())  # its own: load_state_dict() writes in place
            if name in moments:
                self.var.set(name, moments[name].var.clone())
        for name, tensor in model.named_buffers():
            self.buffer.set(name, tensor.detach().clone())

    def _set_up(self, model: nn.Module, rules: RuleSet, output: Output) -> None:
        """A network of ``model`` that has no tensors yet."""
        nn.Module.__init__(self)
        self.mean, self.var, self.buffer = Registry(), Registry(), Registry()
        self.scale, self.constant, self.folded = Registry(), Registry(), Registry()
        self.pointwise = nn.ModuleDict()
        self.rules, self.output = rules, output
        self._model = (model,)  # a tuple, so that the model's own tensors are not this module's
        self._binder = Binder(model.forward)
        self._plans: list[Plan] = []
        self._scale_names: list[str] = []
        self.register_load_state_dict_post_hook(_refold)

    # --- calling -------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Moments:
        plan, leaves = self.plan(args, kwargs)
        result = plan.module(*leaves)
        return Moments(result[0], result[1] if len(result) > 1 else torch.zeros_like(result[0]))

    def capture(self, *args: Any, **kwargs: Any) -> None:
        """Capture this call ahead of time, which ``torch.compile`` and saving need."""
        self.plan(args, kwargs)

    def plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Plan, list[Tensor]]:
        """The graph for this call, captured if it is the first of its kind, and the tensors to run it with."""
        structure, leaves = self.flatten(args, kwargs)
        return self._find(structure, leaves) or self._capture(structure, leaves), leaves

    def fuse(self) -> None:
        """Compile each pointwise rule by itself, for all calls captured so far and for copies of this network.

        It takes seconds, where ``torch.compile`` of the whole network takes minutes, and gives most of its speed in
        calibration, which does the same by itself once it is worth it. Raises what ``torch.compile`` raises.
        """
        for module in self.pointwise.values():
            if isinstance(module, Pointwise) and not module.fused:
                module.fuse(torch.empty(0, dtype=self.dtype, device=self.device))

    def trace(self, *args: Any, **kwargs: Any) -> Trace:
        """Run the call op by op and return what flows at every module path."""
        plan, leaves = self.plan(args, kwargs)
        walk = Walk(plan.captured, plan.signature.structure, self.rules, self._tensors(), tracing=False)
        with torch.no_grad():
            values = walk.run(*leaves)
        inputs, outputs = (
            MappingProxyType({path: values[node] for path, node in marks.items() if _is_float(values[node])})
            for marks in (plan.captured.module_inputs, plan.captured.module_outputs)
        )
        return Trace(outputs, inputs)

    def __repr__(self) -> str:
        weights = sum(tensor.numel() for _, tensor in self.var.items())
        name = type(self._model[0]).__name__
        return f"MomentNet({name}, rules={self.rules.name}, {weights:,} random weights, {len(self._plans)} graphs)"

    @property
    def scales(self) -> dict[str, float]:
        """α of every scale point captured so far, by module path; ``(output)`` is the one on the output."""
        return {name: float(self.scale[scale_path(name)].detach().exp()) for name in self._scale_names}

    @property
    def signatures(self) -> list[str]:
        """The calls captured so far, with free sizes as symbols."""
        return [plan.signature.describe() for plan in self._plans]

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in (*self.parameters(), *self.buffers())), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        floats = (tensor.dtype for _, tensor in self.mean.items() if tensor.is_floating_point())
        return next(floats, torch.get_default_dtype())

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Structure, list[Tensor]]:
        """The structure of a call and its tensors, checked."""
        unnamed, named = self._binder.bind(args, kwargs)
        leaves: list[Tensor] = []
        structure = ("tuple", (flatten(unnamed, leaves, "*args"), flatten(named, leaves)))
        for leaf in leaves:
            if leaf.device != self.device:
                raise DeviceMismatchError(
                    f"an input is on {leaf.device}, the network on {self.device}: move one of them with .to()"
                )
        return structure, leaves

    def _find(self, structure: Structure, leaves: list[Tensor]) -> Plan | None:
        for plan in self._plans:
            if plan.signature.accepts(structure, leaves):
                return plan
        return None

    # --- capturing -----------------------------------------------------------------------------------

    def _capture(self, structure: Structure, leaves: list[Tensor]) -> Plan:
        """Capture, lift and keep the graph of one call; nothing is kept if any step fails."""
        captured, lifted, scales = self.lift(structure, leaves)
        require_rules(lifted.applied, type(self._model[0]).__name__, self.rules)
        for name in lifted.scales:
            if scale_path(name) not in self.scale:
                self.scale.set(scale_path(name), scales[scale_path(name)])
                self._scale_names.append(name)
        with quiet():
            fold(lifted.graph, dict((*self.named_buffers(), *self.named_parameters())), self.folded)
        shapes = [tuple(leaf.shape) for leaf in leaves]
        plan = Plan(lifted.signature, captured, lifted.applied, self.assemble(lifted.graph), shapes)
        self._plans.append(plan)
        return plan

    def lift(self, structure: Structure, leaves: list[Tensor]) -> tuple[Captured, Lifted, Registry]:
        """The captured graph of one call, its lifted form, and the scales that form refers to."""
        refuse_training(self._model[0])
        inputs = _graph_inputs(structure, leaves)
        free = free_dims(inputs)
        try:
            with quiet():
                return self._lift_freely(structure, inputs, free)
        except Exception as error:
            raise capture_error(self._model[0], structure, inputs, error) from error

    def _lift_freely(
        self, structure: Structure, inputs: list[Tensor], free: list[list[bool]]
    ) -> tuple[Captured, Lifted, Registry]:
        try:
            return self._lift(structure, inputs, free)
        except Exception as error:
            if isinstance(error, VarpropError) and not isinstance(error, RuleError):
                raise
            # Not every model exports with free sizes: then each set of sizes gets a graph of its own.
            return self._lift(structure, inputs, [[False] * len(dims) for dims in free])

    def _lift(
        self, structure: Structure, inputs: list[Tensor], free: list[list[bool]]
    ) -> tuple[Captured, Lifted, Registry]:
        examples = example(inputs, free, self.device)
        captured = export(self._model[0], self.mean, self.buffer, structure, examples, free, self.output)
        random = random_leaves(structure)
        regroup(captured, random_sources(captured, self.var.tensors(), random))
        for name, tensor in captured.made_up.items():
            self.constant.set(name, tensor, persistent=False)
        names = [*scale_points(captured, self.rules, self.var, random).names.values(), OUTPUT]
        tensors = self._tensors()
        tensors.scale = _with_scales(self.scale, names, self.dtype, self.device)
        return captured, lift(captured, structure, self.rules, tensors, examples, self.device), tensors.scale

    def _tensors(self) -> Tensors:
        return Tensors(self.mean, self.var, self.buffer, self.scale, self.constant, self.pointwise)

    def assemble(self, graph: fx.Graph) -> fx.GraphModule:
        """A module around ``graph`` that shares this network's registries instead of copying from them."""
        module = fx.GraphModule(nn.Module(), fx.Graph())
        self._tensors().attach(module)
        module.folded = self.folded
        module.graph = graph
        return module

    # --- saving --------------------------------------------------------------------------------------

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Write ``config.json`` and ``model.safetensors`` to a folder, made if need be; its other files stay.

        A network saved there before is replaced, at one instant: an interrupted save leaves the old one or the new one.
        """
        saving.save(self, path)

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module | None = None,
        rules: RuleSet | None = None,
        output: Output = None,
        *,
        device: torch.device | str = "cpu",
    ) -> Self:
        """The network that ``save_pretrained`` wrote, its calls captured. Nothing in the folder is run.

        A model of transformers is rebuilt; any other must be given as ``model``, whose weights do not matter. So must
        rules that are not the library's own, and an ``output`` that is a function.
        """
        if model is not None:
            refuse_training(model)
        return saving.load(cls, path, model, rules, output, torch.device(device))

    # --- moving and copying --------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MomentNet:
        """``.to()`` and its kin. Graphs hold baked dtypes and devices, so they are captured again when those change."""
        old_dtype, old_device = self.dtype, self.device
        probe = fn(torch.empty(0, dtype=old_dtype, device=old_device))
        if probe.dtype == torch.float16:
            raise PrecisionError("float16 turns variances below 6e-8 into 0: use bfloat16, or float32 under autocast")
        super()._apply(fn, recurse)
        if (self.dtype, self.device) != (old_dtype, old_device):
            self._recapture(old_dtype)
        return self

    def _recapture(self, old_dtype: torch.dtype) -> None:
        plans, self._plans = self._plans, []
        self.constant, self.folded, self.pointwise = Registry(), Registry(), nn.ModuleDict()
        self.capture_calls([plan.call.with_dtype(old_dtype, self.dtype) for plan in plans])

    def capture_calls(self, calls: Iterable[Signature]) -> None:
        """Capture calls that are known by their structure, dtypes and sizes (all numbers) alone."""
        for call in calls:
            pairs = zip(call.sizes, call.dtypes, strict=True)
            leaves = [torch.zeros(sizes, dtype=dtype, device=self.device) for sizes, dtype in pairs]  # type: ignore[arg-type]
            self._capture(call.structure, leaves)

    def __deepcopy__(self, memo: dict[int, Any]) -> MomentNet:
        """A network of its own tensors. Graphs refer to tensors by name, so they are copied and attached anew."""
        new = self.__class__.__new__(self.__class__)
        new._set_up(self._model[0], self.rules, self.output)
        for name in ("mean", "var", "buffer", "scale", "constant", "folded", "pointwise"):
            setattr(new, name, copy.deepcopy(getattr(self, name), memo))
        new._scale_names = list(self._scale_names)
        new._plans = [
            Plan(p.signature, p.captured, p.applied, new.assemble(copy.deepcopy(p.module.graph)), p.shapes)
            for p in self._plans
        ]
        return new


def propagate(model: nn.Module, posterior: Posterior, rules: RuleSet = CVP, *, output: Output = None) -> MomentNet:
    """Lift ``model`` to moments under ``posterior``: the result is called like the model and returns ``Moments``.

    ``output`` names the tensor to propagate to if the model returns several: a key, an index, or a
    function of the model's return value; by default its logits or its only tensor. The model is
    captured on the first call and is not changed; the network keeps its own copy of every tensor.
    """
    refuse_training(model)
    return MomentNet(model, posterior, rules, output)


def _refold(net: MomentNet, _: Any) -> None:
    """Loaded weights make everything folded from the old ones stale."""
    net._recapture(net.dtype)


def _graph_inputs(structure: Structure, leaves: list[Tensor]) -> list[Tensor]:
    """The leaves the model sees: of moments, the mean."""
    remaining = iter(leaves)
    inputs = []
    for random in random_leaves(structure):
        inputs.append(next(remaining))
        if random:
            next(remaining)
    return inputs


def _with_scales(existing: Registry, names: list[str], dtype: torch.dtype, device: torch.device) -> Registry:
    """The scales so far, and a new one of α = 1 for each name that has none."""
    scales = Registry()
    for path in map(scale_path, names):
        fresh = nn.Parameter(torch.zeros((), dtype=dtype, device=device), requires_grad=False)
        scales.set(path, existing[path] if path in existing else fresh)  # noqa: SIM401 (a registry has no get)
    return scales


def refuse_training(model: nn.Module) -> None:
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    for path, module in model.named_modules():
        if module.training and isinstance(module, kinds) and getattr(module, "p", 1) > 0:
            raise TrainingModeError(
                f"{path or 'the model'} ({type(module).__name__}) is in training mode: call model.eval() first"
            )


def _is_float(value: Any) -> bool:
    return is_random(value) or (isinstance(value, Tensor) and value.is_floating_point())
