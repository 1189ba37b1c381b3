"""Sums over fixed points of the logit Gaussian: the same input, the same output; in work tensors of bounded size."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from varprop.errors import InputError
from varprop.moments import Moments

BUDGET = 1 << 24
"""Entries of the largest work tensor: 64 MB in float32."""
USUAL_ROWS = 64
"""For which exported graphs keep to the budget."""
MOST_SAMPLES = 1 << 20
MOST_NUMBERS = 1 << 30
"""Of all points together: 8 GB while they are made."""
SOBOL_ENDS = torch.quasirandom.SobolEngine.MAXDIM
_SEED = 0x5EED


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
    if torch.compiler.is_exporting():  # for any number of rows: nothing may depend on it
        yield points.split(max(1, BUDGET // (USUAL_ROWS * mean.shape[-1]))), *flat
        return
    for part in zip(*(x.split(rows) for x in flat), strict=True):
        yield points.split(max(1, BUDGET // part[0].numel())), *part


def sampled(mean: Tensor, std: Tensor, points: Tensor) -> Tensor:
    """[rows, points, classes]"""
    return torch.addcmul(mean[:, None], std[:, None], points)


def root(var: Tensor) -> Tensor:
    """√v with a finite derivative at 0."""
    positive = var > 0
    return torch.where(positive, torch.where(positive, var, 1.0).sqrt(), 0.0)


@functools.lru_cache(maxsize=8)  # where they are used, so that they are not moved there for every batch
@torch.inference_mode(False)  # they may be made while predicting and used again in calibration
def normals(samples: int, dims: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``samples`` points of a standard normal distribution in ``dims`` dimensions, spread evenly.

    A scrambled Sobol set through the inverse normal distribution function. Sobol's numbers end at 21,201 dimensions;
    beyond, the points are pseudo-random and come in pairs ±z, so that their mean is 0 all the same.
    """
    if samples * dims > MOST_NUMBERS:
        raise InputError(f"{samples} points for {dims} classes are more than memory holds: take fewer samples")
    if dims > SOBOL_ENDS:
        half = torch.randn(-(-samples // 2), dims, generator=torch.Generator().manual_seed(_SEED))
        points = torch.cat([half, -half])[:samples]
    else:
        uniform = torch.quasirandom.SobolEngine(dims, scramble=True, seed=_SEED).draw(samples, dtype=torch.float64)
        smallest = 2.0**-32  # Sobol's numbers have 30 bits and may be 0
        points = torch.special.ndtri(uniform.clamp(smallest, 1 - smallest)).float()
    return points.to(device=device, dtype=dtype)
