"""The Gaussian an IVON optimizer has learnt, read by duck typing from the optimizer or its state dict.

Two layouts are read: one flat vector of curvatures per parameter group, ``group["hess"]``, as in checkpoints of the
``ivon-opt`` package; or one tensor per parameter, ``state[parameter]["hess"]``, as in varprop's own IVON.
"""

from __future__ import annotations

import gc
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from varprop.errors import PosteriorError, listing, shortened
from varprop.moments import Moments
from varprop.posterior.binding import Tensors, required
from varprop.posterior.matching import Options, held
from varprop.posterior.tensors import cast

_Parameters = Mapping[str, nn.Parameter]


def moments(model: nn.Module, source: Any) -> tuple[Tensors, Tensors]:
    """Means and variances by parameter name. ``source`` is an optimizer or its state dict."""
    model = required(model, "from_ivon(model, optimizer)")
    if hasattr(source, "param_groups"):
        _refuse_sampled(source)
    optimizer = held(model, source, "hess")
    mean: Tensors = {}
    var: Tensors = {}
    problems: list[str] = []
    for index, group in enumerate(optimizer.groups):
        parameters = dict(optimizer.named[key] for key in group["params"])
        try:
            found = _variances(group, parameters, optimizer.states(group))
        except PosteriorError as error:
            problems.append(f"group {index}: {error}")
        else:
            var |= found
            mean |= {name: parameters[name].detach() for name in found}
    if problems:
        raise PosteriorError(listing(f"cannot read a posterior from this {optimizer.kind}", problems))
    if not mean:
        raise PosteriorError(f"this {optimizer.kind} holds no parameters, so there is no posterior in it")
    return mean, var


def _variances(group: Options, parameters: _Parameters, states: Mapping[str, Any]) -> Tensors:
    """1/(ess·(hess + weight_decay)), in the dtype and on the device of each parameter."""
    flat = "hess" in group
    hess = _flat_curvatures(group["hess"], parameters) if flat else _curvatures(group, parameters, states)
    ess, weight_decay = (_number(group, key) for key in ("ess", "weight_decay"))
    if ess <= 0 or weight_decay < 0:
        raise PosteriorError(f"ess is {ess} and weight_decay {weight_decay}: they must be positive and not negative")
    var = {}
    for name, curvature in hess.items():
        # IVON keeps hess + weight_decay positive, not hess itself, which may go a little below zero.
        precision = ess * (curvature.to(torch.promote_types(curvature.dtype, torch.float32)) + weight_decay)
        if wrong := int((~(precision.isfinite() & (precision > 0))).sum()):
            raise PosteriorError(
                f"hess + weight_decay is not positive and finite in {wrong} of {precision.numel()} entries of "
                f"{name!r}: training diverged, or the checkpoint is damaged"
            )
        parameter = parameters[name].detach()
        exact = Moments(parameter, precision.reciprocal().to(parameter.device))
        var[name] = cast(name, exact, None, parameter.dtype).var
    return var


def _flat_curvatures(flat: Any, parameters: _Parameters) -> Tensors:
    sizes = [parameter.numel() for parameter in parameters.values()]
    if not isinstance(flat, Tensor) or flat.numel() != sum(sizes):
        has = f"{flat.numel()} entries" if isinstance(flat, Tensor) else f"a {type(flat).__name__}"
        raise PosteriorError(
            f'"hess" is {has}, but the parameters of the group ({_few(parameters)}) have '
            f"{sum(sizes)} in all: the model is not the one that was trained, or its parameters are in another order"
        )
    parts = flat.detach().reshape(-1).split(sizes)
    return {name: part.view(p.shape) for (name, p), part in zip(parameters.items(), parts, strict=True)}


def _curvatures(group: Options, parameters: _Parameters, states: Mapping[str, Any]) -> Tensors:
    """One tensor per parameter. varprop's IVON, which counts its draws, has none before it samples a parameter."""
    ours = "draws" in group
    hess, missing = {}, []
    for name, parameter in parameters.items():
        found = states[name].get("hess")
        if isinstance(found, Tensor):
            hess[name] = found
        elif not ours:
            missing.append(name)
        elif parameter.requires_grad:  # what is frozen was never sampled: it is deterministic
            hess[name] = torch.full(parameter.shape, _number(group, "hess_init"))
    if missing:
        raise PosteriorError(
            f'no "hess" for {_few(missing)}: only an IVON optimizer that holds its curvature can be read; '
            "other posteriors come in by from_tensors"
        )
    for name, found in hess.items():
        if found.shape != parameters[name].shape:
            shapes = f"{tuple(found.shape)}, the parameter {tuple(parameters[name].shape)}"
            raise PosteriorError(f'"hess" of {name!r} has shape {shapes}')
    return hess


def _few(names: Iterable[str]) -> str:
    return ", ".join(shortened([repr(name) for name in names], 4))


def _number(group: Options, key: str) -> float:
    if key not in group:
        raise PosteriorError(f'no "{key}" among its options')
    try:
        value = float(group[key])
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise PosteriorError(f'"{key}" is {group[key]!r}, not a finite number')
    return value


def _refuse_sampled(optimizer: Any) -> None:
    """Refuse while the weights are a draw instead of the mean.

    varprop's IVON says so, also from inside a trainer's wrapper. ``ivon-opt`` leaves no mark, so we look at what it
    cannot avoid: a step leaves the parameters of a group as views of one vector, while a draw, also one left behind by
    an exception, gives each parameter memory of its own.
    """
    told = getattr(optimizer, "perturbed", getattr(getattr(optimizer, "optimizer", None), "perturbed", None))
    if _in_block(optimizer) if told is None else told:
        raise PosteriorError(
            "the weights are a sample now, not the mean: call optimizer.eval() first, or from_ivon outside the "
            "optimizer's sampled_params() block"
        )
    if getattr(optimizer, "current_step", 0) and any(_apart(group) for group in optimizer.param_groups):
        raise PosteriorError(
            "the weights look like a sample that an interrupted sampled_params() block left in place: load the last "
            "checkpoint. If you replaced the weights on purpose, pass optimizer.state_dict() instead."
        )


def _in_block(optimizer: Any) -> bool:
    """Whether ``sampled_params`` is suspended: it is a generator that refers to the optimizer."""
    sampler = getattr(type(optimizer), "sampled_params", None)
    code = getattr(inspect.unwrap(sampler), "__code__", None) if callable(sampler) else None
    return any(inspect.isgenerator(x) and x.gi_code is code and x.gi_frame for x in gc.get_referrers(optimizer))


def _apart(group: Mapping[str, Any]) -> bool:
    """Whether at least two parameters share no memory, in a group that keeps its curvature as one vector."""
    hess = group.get("hess")
    held = [p for p in group["params"] if p.numel()]
    if hess is None or len(held) < 2 or any(p.device != hess.device or p.dtype != hess.dtype for p in held):
        return False  # a model moved elsewhere after training has new memory too, and is no sample
    return len({p.untyped_storage().data_ptr() for p in held}) == len(held)
