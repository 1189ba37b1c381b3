"""The Gaussian an IVON optimizer has learnt, read by duck typing from the optimizer or its state dict.

Two layouts are read: one flat vector of curvatures per parameter group, ``group["hess"]``, as in checkpoints of the
``ivon-opt`` package; or one tensor per parameter, ``state[parameter]["hess"]``, as in varprop's own IVON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from varprop.errors import PosteriorError, listing, shortened
from varprop.moments import Moments
from varprop.posterior.binding import Tensors
from varprop.posterior.optimizer_state import Group, Options, kind_of, read_groups
from varprop.posterior.tensors import widened


def moments(model: nn.Module, source: Any) -> dict[str, Moments]:
    """By parameter name. ``source`` is an optimizer or its state dict."""
    if hasattr(source, "param_groups"):
        _refuse_sampled(source)
    found: dict[str, Moments] = {}
    problems: list[str] = []
    for index, group in enumerate(read_groups(model, source, "hess")):
        try:
            found |= {name: Moments(group.parameters[name], var) for name, var in _variances(group).items()}
        except PosteriorError as error:
            problems.append(f"group {index}: {error}")
    if problems:
        raise PosteriorError(listing(f"cannot read a posterior from this {kind_of(source)}", problems))
    if not found:
        raise PosteriorError(f"this {kind_of(source)} holds no parameters, so there is no posterior in it")
    return found


def _variances(group: Group) -> Tensors:
    """1/(ess·(hess + weight_decay))."""
    hess = _flat_curvatures(group) if "hess" in group.options else _curvatures(group)
    ess, weight_decay = (_number(group.options, key) for key in ("ess", "weight_decay"))
    if ess <= 0 or weight_decay < 0:
        raise PosteriorError(f"ess is {ess} and weight_decay {weight_decay}: they must be positive and not negative")
    var = {}
    for name, curvature in hess.items():
        # IVON keeps hess + weight_decay positive, not hess itself, which may go a little below zero.
        precision = ess * (widened(curvature) + weight_decay)
        if wrong := int((~(precision.isfinite() & (precision > 0))).sum()):
            raise PosteriorError(
                f"hess + weight_decay is not positive and finite in {wrong} of {precision.numel()} entries of "
                f"{name!r}: training diverged, or the checkpoint is damaged"
            )
        var[name] = precision.reciprocal()
    return var


def _flat_curvatures(group: Group) -> Tensors:
    flat = group.options["hess"]
    sizes = [parameter.numel() for parameter in group.parameters.values()]
    if not isinstance(flat, Tensor) or flat.numel() != sum(sizes):
        has = f"{flat.numel()} entries" if isinstance(flat, Tensor) else f"a {type(flat).__name__}"
        raise PosteriorError(
            f'"hess" is {has}, but the parameters of the group ({_few(group.parameters)}) have '
            f"{sum(sizes)} in all: the model is not the one that was trained, or its parameters are in another order"
        )
    parts = flat.detach().reshape(-1).split(sizes)
    return {name: part.view(p.shape) for (name, p), part in zip(group.parameters.items(), parts, strict=True)}


def _curvatures(group: Group) -> Tensors:
    """One tensor per parameter. varprop's IVON, which counts its draws, has none before it samples a parameter."""
    ours = "draws" in group.options
    hess, missing = {}, []
    for name, parameter in group.parameters.items():
        found = group.states[name].get("hess")
        if isinstance(found, Tensor):
            hess[name] = found
        elif not ours:
            missing.append(name)
        elif parameter.requires_grad:  # what is frozen was never sampled: it is deterministic
            hess[name] = torch.full(parameter.shape, _number(group.options, "hess_init"))
    if missing:
        raise PosteriorError(
            f'no "hess" for {_few(missing)}: only an IVON optimizer that holds its curvature can be read; '
            "other posteriors come in by from_tensors"
        )
    return hess


def _few(names: Iterable[str]) -> str:
    return ", ".join(shortened([repr(name) for name in names], 4))


def _number(options: Options, key: str) -> float:
    if key not in options:
        raise PosteriorError(f'no "{key}" among its options')
    try:
        value = float(options[key])
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise PosteriorError(f'"{key}" is {options[key]!r}, not a finite number')
    return value


def _refuse_sampled(optimizer: Any) -> None:
    """Refuse while the weights are a draw instead of the mean.

    varprop's IVON says so, also from inside a trainer's wrapper. ``ivon-opt`` does not, so we look at what it cannot
    avoid: a step leaves the parameters of a group as views of one vector, while a draw, also one left behind by an
    exception, gives each parameter memory of its own.
    """
    wrapped = getattr(optimizer, "optimizer", None)
    if getattr(optimizer, "perturbed", getattr(wrapped, "perturbed", False)):
        raise PosteriorError(
            "the weights are a sample now, not the mean: call optimizer.eval() first, or from_ivon outside the "
            "optimizer's sampled_params() block"
        )
    if getattr(optimizer, "current_step", 0) and any(_apart(group) for group in optimizer.param_groups):
        raise PosteriorError(
            "the weights look like a sample, not the mean: call from_ivon outside the optimizer's sampled_params() "
            "block. If a block was interrupted, which leaves a sample in place, load the last checkpoint. If you "
            "replaced the weights on purpose, pass optimizer.state_dict() instead."
        )


def _apart(group: Mapping[str, Any]) -> bool:
    """Whether at least two parameters share no memory, in a group that keeps its curvature as one vector."""
    hess = group.get("hess")
    params = [p for p in group["params"] if p.numel()]
    if hess is None or len(params) < 2 or any(p.device != hess.device or p.dtype != hess.dtype for p in params):
        return False  # a model moved elsewhere after training has new memory too, and is no sample
    return len({p.untyped_storage().data_ptr() for p in params}) == len(params)
