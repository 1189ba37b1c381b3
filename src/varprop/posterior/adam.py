"""The curvature that Adam and its kin keep: the running mean of squared gradients, read by duck typing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from varprop.errors import OptimizerStateError, PosteriorMismatchError, listing, shortened
from varprop.posterior.binding import Tensors, required
from varprop.posterior.checkpoints import optimizer_state
from varprop.posterior.diagonal import from_curvature, one_device, positive
from varprop.posterior.matching import Held, Options, held

_SQUARES = "exp_avg_sq"
_EIGHT_BIT = ("state2", "qmap2", "absmax2")
_READABLE = "only Adam, AdamW, NAdam and RAdam keep a curvature in their state"


def moments(
    model: nn.Module, source: Any, batch_size: float, examples: float | None, damping: float
) -> tuple[Tensors, Tensors]:
    """Means and variances by parameter name, from an optimizer, its state dict or a checkpoint of a trainer."""
    model = required(model, "from_adam(model, optimizer)")
    positive(batch_size=batch_size, examples=examples, damping=damping)
    expected: list[list[str]] = []
    if isinstance(source, str | os.PathLike):
        source, expected = optimizer_state(source, model)
    optimizer = held(model, source, _SQUARES, expected)
    parameters = dict(optimizer.named.values())
    one_device(parameters)
    curvature = {name: batch_size * h for name, h in _second_moments(optimizer).items()}
    return from_curvature(curvature, parameters, examples, damping)


def _second_moments(optimizer: Held) -> Tensors:
    """v/(1 − β₂ᵗ): the mean of squared gradients without the zeros it began with."""
    found: Tensors = {}
    problems: list[str] = []
    for group in optimizer.groups:
        for name, state in optimizer.states(group).items():
            if not state:  # frozen, or never reached by a gradient
                continue
            if fault := _fault(state, group):
                problems.append(f"{name!r}: {fault}")
            elif int(state["step"]):
                squares = state[_SQUARES].detach()
                squares = squares.to(torch.promote_types(squares.dtype, torch.float32))
                found[name] = squares / (1 - float(group["betas"][1]) ** int(state["step"]))
    if problems:
        raise OptimizerStateError(listing(f"this {optimizer.kind} has no curvature to read", shortened(problems)))
    if not found:
        raise OptimizerStateError(
            f"this {optimizer.kind} holds no state: it has made no step yet, or is plain SGD. Pass it after training; "
            f"{_READABLE}. For others there are Posterior.from_fisher and Posterior.isotropic."
        )
    _check_shapes(optimizer, found)
    return found


def _fault(state: Mapping[str, Any], group: Options) -> str | None:
    squares = state.get(_SQUARES)
    if any(key in state for key in _EIGHT_BIT) or (
        isinstance(squares, Tensor) and (type(squares) is not Tensor or not squares.is_floating_point())
    ):
        return (
            "its state is quantised or sharded; 8-bit moments are too coarse for a curvature: use Posterior.from_fisher"
        )
    if squares is None or "betas" not in group or "step" not in state:
        there = ", ".join(map(repr, state))
        return f"its state has {there}; {_READABLE}; for IVON there is from_ivon, for others from_fisher"
    if not isinstance(squares, Tensor):
        return f"{_SQUARES!r} is a {type(squares).__name__}, not a tensor"
    return None


def _check_shapes(optimizer: Held, found: Tensors) -> None:
    parameters = dict(optimizer.named.values())
    wrong = [
        f"{name!r} has shape {tuple(parameters[name].shape)}, its moments {tuple(squares.shape)}"
        for name, squares in found.items()
        if squares.shape != parameters[name].shape
    ]
    if wrong:
        remedy = "Give the model that was trained."
        raise PosteriorMismatchError(listing("this optimizer is of another model", shortened(wrong), remedy))
