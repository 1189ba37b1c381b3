"""Sums over points of the logit Gaussian, in work tensors of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments
from varprop.prediction.normals import normals

BUDGET = 1 << 24
"""Entries of the largest work tensor: 64 MB in float32."""


def over_samples(total: Callable[..., Tensor], logits: Moments, samples: int) -> Tensor:
    """The mean over the points of what ``total(mean, std, points)`` sums; leading dimensions are examples."""
    results = []
    for points, mean, std in pieces(logits, samples):
        parts = [total(mean, std, some) for some in points]
        results.append(sum(parts[1:], parts[0]) / samples)
    result = torch.cat(results)
    return result.view(*logits.shape[:-1], *result.shape[1:])


def pieces(logits: Moments, samples: int, *targets: Tensor) -> Iterator[tuple[Any, ...]]:
    """Some points at a time, and means, standard deviations and targets of some rows: no product exceeds the budget."""
    mean, var = (x.reshape(-1, x.shape[-1]) for x in logits)
    points = normals(samples, mean.shape[-1], dtype=mean.dtype, device=mean.device)
    rows = max(1, BUDGET // points.numel())
    flat = (mean, root(var), *(target.reshape(-1) for target in targets))
    for part in zip(*(x.split(rows) for x in flat), strict=True):
        yield points.split(max(1, BUDGET // part[0].numel())), *part


def sampled(mean: Tensor, std: Tensor, points: Tensor) -> Tensor:
    """[rows, points, classes]"""
    return torch.addcmul(mean[:, None], std[:, None], points)


def root(var: Tensor) -> Tensor:
    """√v with a finite derivative at 0."""
    positive = var > 0
    return torch.where(positive, torch.where(positive, var, 1.0).sqrt(), 0.0)
