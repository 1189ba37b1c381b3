"""One fixed set of normal points for every dimension and number of samples: the same input, the same output."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from varprop.errors import InputError

SOBOL_ENDS = torch.quasirandom.SobolEngine.MAXDIM
_SEED = 0x5EED


def normals(samples: int, dims: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``samples`` points of a standard normal distribution in ``dims`` dimensions, spread evenly.

    A scrambled Sobol set through the inverse normal distribution function. Sobol's numbers end at 21,201 dimensions;
    beyond, the points are pseudo-random and come in pairs ±z, so that their mean is 0 all the same.
    """
    if samples < 1 or dims < 1:
        raise InputError(f"{samples} samples of {dims} dimensions: both must be at least 1")
    return _points(samples, dims, dtype, device)


@functools.lru_cache(maxsize=8)  # where they are used, so that they are not moved there for every batch
@torch.inference_mode(False)  # they may be made while predicting and used again in calibration
def _points(samples: int, dims: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _drawn(samples, dims).to(device=device, dtype=dtype)


def _drawn(samples: int, dims: int) -> Tensor:
    if dims > SOBOL_ENDS:
        generator = torch.Generator().manual_seed(_SEED)
        half = torch.randn(-(-samples // 2), dims, generator=generator)
        return torch.cat([half, -half])[:samples]
    uniform = torch.quasirandom.SobolEngine(dims, scramble=True, seed=_SEED).draw(samples, dtype=torch.float64)
    smallest = 2.0**-32  # Sobol's numbers have 30 bits and may be 0
    return torch.special.ndtri(uniform.clamp(smallest, 1 - smallest)).float()
