"""Scores of predictions, all of them means: of probabilities, of the Gaussians of a regression, of its intervals.

Outputs of a regression may have any shape; they count one by one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from varprop.errors import MetricError
from varprop.metrics import inputs


def brier(probs: Tensor, target: Tensor) -> Tensor:
    """Brier score: the mean of Σ_c (p_c − y_c)², between 0 and 2.

    ``probs`` is [N, C] with C ≥ 2; ``target`` holds class indices [N], or probabilities (also one-hot) [N, C].
    """
    return inputs.mean(brier_of_each(probs, target))


def brier_of_each(probs: Tensor, target: Tensor) -> Tensor:
    probs = inputs.distribution("probs", probs)
    target = inputs.class_target(target, probs)
    if target.ndim == 2:
        return (probs - target).square().sum(1)
    residual = probs.to(inputs.wide(probs.device), copy=True)
    # Subtracting 1 in place of expanding |p|² − 2 p_y + 1, which would cancel where the prediction is right.
    residual[torch.arange(len(target), device=target.device), target] -= 1
    return residual.square_().sum(1)


def nll(probs: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood: the mean of −Σ_c y_c log p_c, with 0 log 0 = 0.

    ``inf`` if something that happened was given probability 0. That is the score of such a prediction: clamping it
    would make the result depend on where it is clamped. float32 probabilities reach 0 below 1e-45.
    ``probs`` is [N, C] with C ≥ 2; ``target`` holds class indices [N], or probabilities (also one-hot) [N, C].
    """
    return inputs.mean(nll_of_each(probs, target))


def nll_of_each(probs: Tensor, target: Tensor) -> Tensor:
    probs = inputs.distribution("probs", probs)
    target = inputs.class_target(target, probs)
    if target.ndim == 2:
        return -torch.special.xlogy(target, probs).sum(1)
    return -probs.gather(1, target[:, None]).squeeze(1).to(inputs.wide(probs.device)).log()


def bce(probs: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy for multi-label targets: −Σ_a [y_a log p_a + (1 − y_a) log(1 − p_a)], mean over examples.

    Both are [N, A] in [0, 1]; ``target`` may be soft. 0 log 0 = 0, and ``inf`` where the impossible happened, as for
    ``nll``.
    """
    return inputs.mean(bce_of_each(probs, target))


def bce_of_each(probs: Tensor, target: Tensor) -> Tensor:
    probs = inputs.independent("probs", probs)
    target = inputs.multi_label_target(target, probs)
    probs = probs.to(target.dtype)
    return -(torch.special.xlogy(target, probs) + torch.special.xlog1py(1 - target, -probs)).sum(1)


def rmse(mean: Tensor, target: Tensor) -> Tensor:
    """Root mean square error."""
    mean, target = inputs.nonempty(*inputs.aligned(mean=mean, target=target))
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
    low, high, target = inputs.nonempty(*inputs.aligned(low=low, high=high, target=target))
    return ((low <= target) & (target <= high)).to(low.dtype).mean()


def mpiw(low: Tensor, high: Tensor) -> Tensor:
    """Mean prediction interval width."""
    low, high = inputs.nonempty(*inputs.aligned(low=low, high=high))
    return (high - low).mean()


def _gaussian(mean: Tensor, var: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    found = inputs.aligned(mean=mean, var=var, target=target)
    if bool((found[1] < 0).any()):
        raise MetricError("a variance is negative")
    return found
