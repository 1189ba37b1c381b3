"""Scores of a regression: of its mean, of its Gaussians, of its intervals. Outputs of any shape count one by one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from varprop.errors import MetricError
from varprop.metrics import inputs


def rmse(mean: Tensor, target: Tensor) -> Tensor:
    """Root mean square error."""
    mean, target = inputs.some(*inputs.aligned(mean=mean, target=target))
    return (mean - target).square().mean().sqrt()


def gaussian_nll(mean: Tensor, var: Tensor, target: Tensor) -> Tensor:
    """Mean negative log-density of the targets: ½ log 2πv + (y − μ)²/2v.

    ``inf`` if a target lies off a Gaussian without variance.
    """
    return inputs.mean(gaussian_nll_of_each(mean, var, target))


def gaussian_nll_of_each(mean: Tensor, var: Tensor, target: Tensor) -> Tensor:
    mean, var, target = _gaussian(mean, var, target)
    square = (target - mean).square()
    found = 0.5 * (torch.log(2 * math.pi * var) + square / var)
    return torch.where(var > 0, found, torch.where(square > 0, math.inf, -math.inf))


def crps(mean: Tensor, var: Tensor, target: Tensor) -> Tensor:
    """Continuous ranked probability score of Gaussians, mean over outputs; in the unit of the targets.

    ∫ (F(t) − 1[t ≥ y])² dt = σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π] with z = (y − μ)/σ (Gneiting, Raftery 2007); without
    variance the absolute error.
    """
    return inputs.mean(crps_of_each(mean, var, target))


def crps_of_each(mean: Tensor, var: Tensor, target: Tensor) -> Tensor:
    mean, var, target = _gaussian(mean, var, target)
    error, std = target - mean, var.sqrt()
    z = error / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    spread = error * torch.erf(z / math.sqrt(2)) + std * (2 * density - 1 / math.sqrt(math.pi))
    return torch.where(std > 0, spread, error.abs())


def picp(low: Tensor, high: Tensor, target: Tensor) -> Tensor:
    """Prediction interval coverage probability: the share of targets with low ≤ y ≤ high."""
    low, high, target = inputs.some(*inputs.aligned(low=low, high=high, target=target))
    return ((low <= target) & (target <= high)).to(low.dtype).mean()


def mpiw(low: Tensor, high: Tensor) -> Tensor:
    """Mean prediction interval width."""
    low, high = inputs.some(*inputs.aligned(low=low, high=high))
    return (high - low).mean()


def _gaussian(mean: Tensor, var: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    found = inputs.aligned(mean=mean, var=var, target=target)
    if bool((found[1] < 0).any()):
        raise MetricError("a variance is negative")
    return found
