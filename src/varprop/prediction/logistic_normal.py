"""E[σ(x)] of a Gaussian x, and its logarithm in any tail."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.kernels.pointwise import moments_of
from varprop.moments import Moments
from varprop.rules.logistic import sigmoid

RARE = 1e-4
"""Probabilities below are computed in log space where their log is asked for."""


def mean_sigmoid(mean: Tensor, var: Tensor) -> Tensor:
    return moments_of(sigmoid, Moments(mean, var)).mean


def log_mean_sigmoid(mean: Tensor, var: Tensor) -> Tensor:
    """log E[σ(x)], also where the mean itself is no number above 0."""
    prob = mean_sigmoid(mean, var)
    far = prob < RARE
    result = torch.where(far, 1.0, prob).log()
    return result.masked_scatter(far, _log_tail(mean[far], var[far])) if bool(far.any()) else result


def _log_tail(mean: Tensor, var: Tensor) -> Tensor:
    """log E[σ(μ + sz)] for small values, by a sum around the peak of φ(z) σ(μ + sz), where z = s σ(−μ − sz).

    Points are z + w sinh t, w the width of the peak. To within 1e-5.
    """
    std = (var + 1e-6).sqrt()  # off 0, for the gradient
    with torch.no_grad():
        low, high = torch.zeros_like(std), std
        for _ in range(40):
            middle = (low + high) / 2
            beyond = std * torch.sigmoid(-mean - std * middle) > middle
            low, high = torch.where(beyond, middle, low), torch.where(beyond, high, middle)
        gate = torch.sigmoid(mean + std * low)
        width = torch.rsqrt(1 + std * std * gate * (1 - gate))
        t = torch.linspace(-6, 6, 61, dtype=mean.dtype, device=mean.device)[:, None]
        points = low + width * torch.sinh(t)
        weight = torch.log(0.2 * width * torch.cosh(t)) - 0.5 * points.square() - 0.5 * math.log(2 * math.pi)
    return torch.logsumexp(weight + F.logsigmoid(mean + std * points), 0)
