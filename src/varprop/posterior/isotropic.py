"""One variance for all weights: what a bare checkpoint allows."""

from __future__ import annotations

import torch
from torch import nn

from varprop.posterior.binding import Tensors
from varprop.posterior.diagonal import gaussian, positive, trainable, typical_std


def moments(model: nn.Module, std: float | None) -> tuple[Tensors, Tensors]:
    """Means are the weights, the variance of each is std²."""
    positive(std=std)
    parameters = trainable(model, "isotropic(model)")
    var = (typical_std(parameters) if std is None else std) ** 2
    wide = {name: torch.promote_types(p.dtype, torch.float32) for name, p in parameters.items()}
    return gaussian(parameters, {n: torch.full_like(p, var, dtype=wide[n]).detach() for n, p in parameters.items()})
