"""Variances from a diagonal curvature, and the default width of a posterior that was given none."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from varprop.errors import CurvatureError, DeviceMismatchError, PosteriorError, SettingError, listing, shortened
from varprop.moments import Moments
from varprop.posterior.binding import Tensors
from varprop.posterior.tensors import widened

RELATIVE_STD = 0.1
"""Standard deviation of a weight without a width of its own, in units of the root mean square of all weights."""

Parameters = Mapping[str, nn.Parameter]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The floating point parameters that train, tied ones once, by the model's own names."""
    parameters = dict(model.named_parameters())
    if lazy := [name for name, p in parameters.items() if nn.parameter.is_lazy(p)]:
        raise PosteriorError(f"{lazy[0]!r} is not initialised yet: call the model once first")
    found = {name: p for name, p in parameters.items() if p.requires_grad and p.is_floating_point()}
    if not found:
        raise PosteriorError(
            f"no parameter of this {type(model).__name__} requires a gradient, so none would be random: "
            "call requires_grad_() on those that shall be"
        )
    check_one_device(found)
    return found


def check_one_device(parameters: Parameters) -> None:
    devices = sorted({str(p.device) for p in parameters.values()})
    if len(devices) > 1:
        raise DeviceMismatchError(
            f"the model is spread over {', '.join(devices)}: load it onto one device, e.g. model.to({devices[0]!r})"
        )


def check_positive(**options: float | None) -> None:
    """Refuse options that are not positive, finite numbers; None is one that was not given."""
    for name, value in options.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value < math.inf):
            raise SettingError(f"{name} is {value!r}: it must be a positive number")


def isotropic(model: nn.Module, std: float | None) -> dict[str, Moments]:
    """Means are the weights, the variance of each is std²."""
    check_positive(std=std)
    parameters = trainable(model)
    var = (typical_std(parameters) if std is None else std) ** 2
    return {name: Moments(p, torch.full_like(widened(p), var)) for name, p in parameters.items()}


def typical_std(parameters: Parameters) -> float:
    """A tenth of the root mean square of the weights; of matrices alone where there are any.

    Relative, because a network whose weights are ten times as large (as before a norm) bears ten times the noise. Gains
    of norms are left out: they are about 1 whatever the size of the weights.
    """
    weights = [p for p in parameters.values() if p.ndim > 1] or list(parameters.values())
    total = sum(float(p.detach().float().square().sum(dtype=torch.float64)) for p in weights)
    std = RELATIVE_STD * math.sqrt(total / max(1, sum(p.numel() for p in weights)))
    if not 0 < std < math.inf:
        raise PosteriorError("the weights are all zero, or not finite: there is no width to be had from them")
    return std


def from_curvature(
    curvature: Tensors, parameters: Parameters, examples: float | None, damping: float
) -> dict[str, Moments]:
    """Means are the parameters, variances 1/(n (h + δ)), with δ = ``damping`` times the mean of h over all weights.

    ``examples`` is n. Without it n is what makes the mean variance that of ``typical_std``.
    """
    _check_curvature(curvature)
    entries = sum(h.numel() for h in curvature.values())
    mean = sum(float(h.sum(dtype=torch.float64)) for h in curvature.values()) / entries
    if not mean:
        raise CurvatureError("the curvature is zero everywhere: the gradients were, so the loss does not see the model")
    # In units of the mean, so that a loss with a tiny scale does not leave the range of float32.
    shape = {name: (h / mean + damping).reciprocal() for name, h in curvature.items()}
    if examples is None:
        average = sum(float(s.sum(dtype=torch.float64)) for s in shape.values()) / entries
        width = typical_std({name: parameters[name] for name in curvature}) ** 2 / average
    else:
        width = 1 / (examples * mean)
    return {name: Moments(parameters[name], s * width) for name, s in shape.items()}


def _check_curvature(curvature: Mapping[str, Tensor]) -> None:
    problems = []
    for name, h in curvature.items():
        if wrong := int((~(h.isfinite() & (h >= 0))).sum()):
            problems.append(f"{name!r}: in {wrong} of {h.numel()} entries")
    if problems:
        headline = "the curvature is NaN, infinite or negative"
        remedy = "Training diverged, or the checkpoint is damaged: take an earlier one."
        raise CurvatureError(listing(headline, shortened(problems), remedy))
