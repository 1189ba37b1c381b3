"""The curvature that Adam and its kin keep: the running mean of squared gradients, read by duck typing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from varprop.errors import OptimizerStateError, listing, shortened
from varprop.moments import Moments
from varprop.posterior.binding import Tensors
from varprop.posterior.checkpoints import read_checkpoint
from varprop.posterior.diagonal import check_one_device, check_positive, from_curvature
from varprop.posterior.optimizer_state import Group, Options, kind_of, read_groups
from varprop.posterior.tensors import widened

_SQUARES = "exp_avg_sq"
_EIGHT_BIT = ("state2", "qmap2", "absmax2")
_READABLE = "only Adam, AdamW, NAdam and RAdam keep a curvature in their state"


def moments(
    model: nn.Module, source: Any, batch_size: float, examples: float | None, damping: float
) -> dict[str, Moments]:
    """By parameter name, from an optimizer, its state dict or a checkpoint of a trainer."""
    check_positive(batch_size=batch_size, examples=examples, damping=damping)
    expected: list[list[str]] = []
    if isinstance(source, str | os.PathLike):
        source, expected = read_checkpoint(source, model)
    groups = read_groups(model, source, _SQUARES, expected)
    parameters = {name: p for group in groups for name, p in group.parameters.items()}
    check_one_device(parameters)
    curvature = {name: batch_size * h for name, h in _second_moments(groups, kind_of(source)).items()}
    return from_curvature(curvature, parameters, examples, damping)


def _second_moments(groups: Sequence[Group], kind: str) -> Tensors:
    """v/(1 − β₂ᵗ): the mean of squared gradients without the zeros it began with."""
    found: Tensors = {}
    problems: list[str] = []
    for group in groups:
        for name, state in group.states.items():
            if not state:  # frozen, or never reached by a gradient
                continue
            if fault := _fault(state, group.options):
                problems.append(f"{name!r}: {fault}")
            elif int(state["step"]):
                squares = widened(state[_SQUARES].detach())
                found[name] = squares / (1 - float(group.options["betas"][1]) ** int(state["step"]))
    if problems:
        raise OptimizerStateError(listing(f"this {kind} has no curvature to read", shortened(problems)))
    if not found:
        raise OptimizerStateError(
            f"this {kind} holds no state: it has made no step yet, or is plain SGD. Pass it after training; "
            f"{_READABLE}. For others there are Posterior.from_fisher and Posterior.isotropic."
        )
    return found


def _fault(state: Options, options: Options) -> str | None:
    squares = state.get(_SQUARES)
    if any(key in state for key in _EIGHT_BIT) or (
        isinstance(squares, Tensor) and (type(squares) is not Tensor or not squares.is_floating_point())
    ):
        return (
            "its state is quantised or sharded; 8-bit moments are too coarse for a curvature: use Posterior.from_fisher"
        )
    if not isinstance(squares, Tensor) or "betas" not in options or "step" not in state:
        there = ", ".join(map(repr, state))
        return f"its state has {there}; {_READABLE}; for IVON there is from_ivon, for others from_fisher"
    return None
