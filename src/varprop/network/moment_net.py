"""MomentNet: a model lifted to moments, called like the model."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import threading
import warnings
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn

from varprop.errors import (
    CaptureError,
    DeviceMismatchError,
    InputError,
    NetworkFileError,
    PosteriorError,
    PrecisionError,
    RuleError,
)
from varprop.graph.captured import Captured
from varprop.graph.check import check_plan
from varprop.graph.compiler import Plan, assemble, plan_call, plan_captured
from varprop.graph.diagnostics import refuse_training, require_model
from varprop.graph.export import Lifting, is_traced, quiet
from varprop.graph.interpreter import Interpreter
from varprop.graph.output import Output
from varprop.graph.registry import REGISTRY_NAMES, Registries, scale_path
from varprop.graph.signature import Binder, Call, Size, takes_one
from varprop.moments import Moments, is_random, moments_of, multiplied_out
from varprop.network import saving
from varprop.network.record import Calibration, Trace
from varprop.network.storage import DISK
from varprop.posterior import Posterior
from varprop.rules import CVP, RuleSet

MOST_GRAPHS = 16
"""Graphs for one set of sizes each that a network keeps."""


class MomentNet(Registries):
    """Mean and variance of a model's output in one forward pass. Made by ``propagate``.

    Its tensors: ``mean`` (every parameter), ``var`` (the random ones), ``buffer``, ``scale`` (log α of
    each scale point) and ``folded`` (products of weights alone, not saved). ``temperature`` divides the output. Passes
    run where the tensors are, or on the ``accelerator``, to which they are brought as they are used.
    """

    def __init__(self, model: nn.Module, posterior: Posterior, rules: RuleSet, output: Output = None) -> None:
        if isinstance(model, Posterior):
            raise InputError("a Posterior was given in the place of the model: propagate(model, posterior)")
        require_model(model)
        if not isinstance(rules, RuleSet):
            raise RuleError(f"rules are a rule set, such as vp.CVP, not the {type(rules).__name__} {rules!r}")
        require_posterior(posterior, "propagate(model, posterior)")
        moments = posterior.resolve(model)
        _refuse_half(next((p.dtype for p in model.parameters() if p.is_floating_point()), None))
        self._set_up(model, rules, output)
        for name, parameter in model.named_parameters():
            mean = moments[name].mean if name in moments else parameter.detach()
            self.mean[name] = mean.clone()  # its own: load_state_dict() writes in place
            if name in moments:
                self.var[name] = moments[name].var.clone()
        for name, tensor in model.named_buffers():
            self.buffer[name] = tensor.detach().clone()

    def _set_up(self, model: nn.Module, rules: RuleSet, output: Output) -> None:
        """A network of ``model`` that has no tensors yet."""
        Registries.__init__(self)
        self.rules, self.output = rules, output
        self._model = (model,)  # a tuple, so that the model's own tensors are not this module's
        self._binder = Binder(model.forward)
        self.temperature = 1.0
        self.calibration: Calibration | None = None
        self.accelerator: torch.device | None = None
        self._plans: list[Plan] = []
        self._warned: set[str] = set()
        self._lock = threading.RLock()
        self.register_load_state_dict_post_hook(_refold)

    # --- calling -------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Moments:
        plan, leaves = self.plan(args, kwargs)
        if is_traced():
            result = plan.module(*leaves)
        else:
            result = plan.run(*leaves) if self.accelerator is None else plan.run_on(self.accelerator, leaves)
        moments = moments_of(*result)
        return moments if self.temperature == 1 else moments.divided_by(self.temperature)

    def capture(self, *args: Any, **kwargs: Any) -> None:
        """Capture this call ahead of time, which ``torch.compile`` and saving need."""
        self.plan(args, kwargs)

    def plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Plan, list[Tensor]]:
        """The graph for this call, captured if it is the first of its kind, and the tensors to run it with."""
        call = self.bind(args, kwargs)
        found = self._find(call)
        if found is not None and (is_traced() or call.sizes in found.checked):
            if found.captured.guards and is_traced():
                raise CaptureError("its graph depends on values of inputs, which a compiled one would not look at")
            return found, call.leaves
        with self._lock:
            known = self._find(call)
            plan = known or plan_call(self.lifting, call)
            faithful = check_plan(self.lifting, plan, call)
            for new in dict.fromkeys((plan, faithful)):
                if new is not known:
                    self._add(new)
            return faithful, call.leaves

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A call in the form that graphs know, checked."""
        call, device = self._binder.bind(args, kwargs), self.device
        elsewhere = [leaf for leaf in call.leaves if leaf.device != device]
        for leaf in elsewhere:
            if not (leaf.device.type == "cpu" and leaf.ndim == 1 and leaf.dtype == torch.int64):
                raise DeviceMismatchError(
                    f"an input is on {leaf.device}, the network on {device}: move one of them with .to()"
                )
        if elsewhere:  # lengths, which torch packs sequences by, are on the CPU
            call = Call(call.structure, [leaf.to(device) for leaf in call.leaves], given=call.leaves)
        if call.variances and not is_traced():
            _refuse_wrong(call.variances)
        return call

    @property
    def lifting(self) -> Lifting:
        """What its calls are compiled from."""
        return Lifting(self._model[0], self, self.rules, self.output)

    def _find(self, call: Call) -> Plan | None:
        """The plan for this call, one for just these sizes first. Plain loops, which torch.compile reads."""
        found = None
        for plan in self._plans:
            if plan.serves(call, self) and (found is None or not plan.signature.ranges):
                found = plan
        return found

    def _add(self, plan: Plan) -> Plan:
        """Keep a plan; of those for one set of sizes, the latest."""
        name, freedom = type(self._model[0]).__name__, plan.signature.freedom
        alike = [known for known in self._plans if known.signature.alike(plan.signature)]
        same = [known for known in alike if known.signature.structure == plan.signature.structure]
        as_rigid = [known for known in alike if known.signature.freedom <= freedom]
        if plan.captured.ending and not self._plans:
            self._warn_once(
                f"{name} ends in {plan.captured.ending}: these are the moments of its logits, which links expect"
            )
        if not self._plans and (end := plan.dead_end):
            self._warn_once(f"no variance reaches the output of {name}, so it is certain: it ends at {end}")
        kept = f"gets a graph of its own, of which the latest {MOST_GRAPHS} are kept"
        if any(known.signature.could_have_served(plan.signature) for known in same):
            text = f"{name} cannot be captured with free sizes: every new shape of its inputs {kept}"
            self._warn_once(f"{text}; pad inputs to a few shapes")
        if len(same) < len(alike):
            self._warn_once(f"every new number that {name} is called with {kept}; give numbers that change as tensors")
        if len(as_rigid) >= MOST_GRAPHS:
            self._plans.remove(as_rigid[0])
        self._plans.append(plan)
        return plan

    def _warn_once(self, text: str) -> None:
        """Once, at the call of the network."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, stacklevel=7)

    def add_outline(self, call: Call, captured: Captured | None = None) -> Plan:
        """Compile a call of which only structure, dtypes and sizes are known, from its graph if there is one."""
        if captured is not None:
            with quiet():
                return self._add(plan_captured(self.lifting, captured, call))
        zeros = [torch.zeros_like(leaf, device=self.device) for leaf in call.leaves]
        return self._add(plan_call(self.lifting, Call(call.structure, zeros)))

    # --- looking inside ------------------------------------------------------------------------------

    def trace(self, *args: Any, **kwargs: Any) -> Trace:
        """Run the call op by op and return what flows at every module path."""
        plan, leaves = self.plan(args, kwargs)
        with torch.no_grad():
            values = multiplied_out(Interpreter(plan.captured, self.rules, self).run(*leaves))
        inputs, outputs = (
            MappingProxyType({path: values[node] for path, node in marks.items() if _is_float(values[node])})
            for marks in (plan.captured.module_inputs, plan.captured.module_outputs)
        )
        return Trace(outputs, inputs)

    def __repr__(self) -> str:
        weights = sum(tensor.numel() for _, tensor in self.var)
        name = type(self._model[0]).__name__
        return f"MomentNet({name}, rules={self.rules.name}, {weights:,} random weights, {len(self._plans)} graphs)"

    @property
    def scales(self) -> dict[str, float]:
        """α of every scale point captured so far, by module path; ``(output)`` is the one on the output."""
        return {name: float(self.scale[scale_path(name)].detach().exp()) for name in self.scale_names}

    @property
    def signatures(self) -> list[str]:
        """The calls captured so far, with free sizes as symbols."""
        return [plan.signature.describe() for plan in self._plans]

    @property
    def inputs(self) -> list[tuple[str, torch.dtype, tuple[Size, ...]]]:
        """Name, dtype and sizes of every tensor of the first call captured, free sizes as symbols."""
        if not self._plans:
            return []
        signature = self._plans[0].signature
        names = [name for name, part in signature.structure[1][1][1] if part[0] == "tensor"]
        return list(zip(names, signature.dtypes, signature.sizes, strict=False))

    @property
    def takes_one(self) -> bool:
        """Does the model take a single argument?"""
        return takes_one(self._model[0].forward)

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
        accelerator: torch.device | str | None = None,
    ) -> Self:
        """The network that ``save_pretrained`` wrote, its calls captured. Nothing in the folder is run.

        A model of transformers is rebuilt; any other must be given as ``model``, whose weights do not matter. So must
        rules that are not the library's own, and an ``output`` that is a function. On the ``device`` "disk", weights
        stay in their file, and are read as they are used: by the CPU, or by an ``accelerator`` that has no room for all
        of them and gets a layer at a time. Inputs and results are on the device.
        """
        if model is not None:
            refuse_training(model)
        place = device if device == DISK else torch.device(device)
        net = saving.load(cls, path, model, rules, output, place)
        net.accelerator = None if accelerator is None else torch.device(accelerator)
        return net

    # --- moving and copying --------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MomentNet:
        """``.to()`` and its kin. Graphs hold baked dtypes and devices, so they are captured again when those change."""
        old_dtype, old_device = self.dtype, self.device
        probe = fn(torch.empty(0, dtype=old_dtype, device=old_device))
        _refuse_half(probe.dtype)
        super()._apply(fn, recurse)
        if (self.dtype, self.device) != (old_dtype, old_device):
            self._recapture(old_dtype)
        return self

    def _recapture(self, old_dtype: torch.dtype) -> None:
        calls, self._plans = [plan.call for plan in self._plans if not plan.captured.guards], []
        self.clear()
        for call in calls:
            leaves = [leaf.to(self.dtype) if leaf.dtype == old_dtype else leaf for leaf in call.leaves]
            with contextlib.suppress(InputError):  # it needs a type of the caller's own, and waits for the next call
                self.add_outline(Call(call.structure, leaves))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NetworkFileError("a network is not pickled: keep it with save_pretrained(folder), copy it with deepcopy")

    def __deepcopy__(self, memo: dict[int, Any]) -> MomentNet:
        """A network of its own tensors. Graphs refer to tensors by name, so they are copied and attached anew."""
        new = self.__class__.__new__(self.__class__)
        new._set_up(self._model[0], self.rules, self.output)
        for name in (*REGISTRY_NAMES, "scale_names"):
            setattr(new, name, copy.deepcopy(getattr(self, name), memo))
        new.recipes, new.temperature, new.calibration = [*self.recipes], self.temperature, self.calibration
        new.accelerator = self.accelerator
        new._plans = [
            dataclasses.replace(plan, module=assemble(copy.deepcopy(plan.module.graph), new), offloaded={})
            for plan in self._plans
        ]
        return new


def propagate(model: nn.Module, posterior: Posterior, rules: RuleSet = CVP, *, output: Output = None) -> MomentNet:
    """Lift ``model`` to moments under ``posterior``: the result is called like the model and returns ``Moments``.

    ``output`` names the tensor to propagate to if the model returns several: a key, an index, or a
    function of the model's return value; by default its logits or its only tensor. The model is
    captured on the first call and is not changed; the network keeps its own copy of every tensor.
    """
    return MomentNet(model, posterior, rules, output)


def require_posterior(posterior: Any, call: str) -> None:
    if not isinstance(posterior, Posterior):
        if isinstance(posterior, torch.optim.Optimizer):
            remedy = "Read one from it: vp.Posterior.from_adam(model, optimizer, …) or from_ivon(model, optimizer)"
        else:
            remedy = "Without one of your own: vp.Posterior.isotropic(model)"
        raise PosteriorError(f"{call} takes a Posterior, not a {type(posterior).__name__}. {remedy}")


def _refold(net: MomentNet, _: Any) -> None:
    """Loaded weights make everything folded from the old ones stale."""
    net._recapture(net.dtype)


def _refuse_wrong(variances: list[Tensor]) -> None:
    for var in variances:
        if var.is_meta or (var.is_cuda and torch.cuda.is_current_stream_capturing()):
            continue  # there are no numbers to look at
        if wrong := int((~(var.isfinite() & (var >= 0))).sum()):
            raise InputError(
                f"the variance of an input is negative or not finite in {wrong} of {var.numel()} entries: "
                "Moments take a mean and a variance"
            )


def _refuse_half(dtype: torch.dtype | None) -> None:
    if dtype == torch.float16:
        raise PrecisionError("float16 turns variances below 6e-8 into 0: use bfloat16, or float32 under autocast")


def _is_float(value: Any) -> bool:
    return is_random(value) or (isinstance(value, Tensor) and value.is_floating_point())
