"""Networks whose output moments are known exactly, and how to compare them with draws."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import varprop as vp


def two_layers(seed: int = 0) -> nn.Sequential:
    """Linear in the first layer's weights and in the second's.

    The hidden units share no weight, so they are independent, and mean and variance of the output have a closed form
    that variance propagation must hit: no approximation is left to hide a mistake in the posterior.
    """
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()


def inputs(size: int = 5) -> Tensor:
    return torch.randn(size, 3, generator=torch.Generator().manual_seed(99), dtype=torch.float64)


def assert_agrees(predicted: vp.Moments, draws: Tensor) -> None:
    """Mean and variance within 5 standard errors of those of the draws, which are stacked along the first dimension."""
    count = len(draws)
    mean, var = draws.mean(0), draws.var(0)
    fourth = (draws - mean).pow(4).mean(0)
    assert (var > 0).all(), "draws that do not differ test nothing"
    assert ((predicted.mean - mean).abs() <= 5 * (var / count).sqrt()).all()
    assert ((predicted.var - var).abs() <= 5 * ((fourth - var.square()) / count).sqrt()).all()


def drawn(network: nn.Module, count: int = 1000) -> Tensor:
    """Outputs of a network that draws its own weights at every call."""
    torch.manual_seed(6)
    with torch.no_grad():
        return torch.stack([network(inputs()) for _ in range(count)])
