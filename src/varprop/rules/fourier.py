"""Fourier transforms: linear maps, whose squared coefficients are found by a transform of the variances.

A complex variance is that of the real part, plus i times that of the imaginary part.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments
from varprop.rules.arithmetic import as_moments
from varprop.rules.ruleset import RuleSet, rule

aten = torch.ops.aten


def _squared(real: Tensor, imag: Tensor | float, dims: list[int], norm: int) -> tuple[Tensor, Tensor]:
    """Variances of the parts of Σ_n z_n e^(±iθ), θ = 2π Σ_d k_d n_d/N_d, given those of the parts of z:

    Σ_n (v_r cos² θ + v_i sin² θ) = S + D_2k        Σ_n (v_r sin² θ + v_i cos² θ) = S − D_2k
    S = ½ Σ_n (v_r + v_i), D = ½ Re of the transform of v_r − v_i
    """
    middle = (0.5 * (real + imag)).sum(dims, keepdim=True)
    swing = torch.fft.fftn(0.5 * (real - imag), dim=dims).real
    for dim in dims:
        places = torch.arange(real.shape[dim], device=real.device)
        swing = swing.index_select(dim, 2 * places % real.shape[dim])
    count = math.prod(real.shape[dim] for dim in dims)
    divisor = (1, count, count * count)[norm]  # none, √N, N
    return (middle + swing).clamp(min=0) / divisor, (middle - swing).clamp(min=0) / divisor


@rule(aten._fft_r2c.default, approximation=None, mixes=True)
def transform_real(x: Moments, dim: list[int], normalization: int, onesided: bool) -> Moments:
    """The transform of real numbers, or the half of it that has no copies. Exact for each part."""
    mean = aten._fft_r2c.default(x.mean, dim, normalization, onesided)
    var = torch.complex(*_squared(x.var, 0.0, dim, normalization))
    return Moments(mean, var.narrow(dim[-1], 0, mean.shape[dim[-1]]))


@rule(aten._fft_c2c.default, approximation=None, mixes=True, takes_complex=True)
def transform(x: Moments, dim: list[int], normalization: int, forward: bool) -> Moments:
    """The transform of complex numbers, or its inverse. Exact for each part."""
    parts = _squared(x.var.real, x.var.imag, dim, normalization)
    return Moments(aten._fft_c2c.default(x.mean, dim, normalization, forward), torch.complex(*parts))


@rule(aten._fft_c2r.default, approximation=None, mixes=True, takes_complex=True)
def inverse_to_real(x: Moments, dim: list[int], normalization: int, last_dim_size: int) -> Moments:
    """The real numbers of half a transform: what stands for its copy, too, counts twice. Exact."""
    mean = aten._fft_c2r.default(x.mean, dim, normalization, last_dim_size)
    last = dim[-1]
    twice = torch.full((x.var.shape[last],), 4.0, dtype=mean.dtype, device=mean.device)
    places = torch.arange(x.var.shape[last], device=mean.device)
    weights = torch.where((places == 0) | (2 * places == last_dim_size), 1.0, twice)
    weighted = x.var * weights.reshape(-1, *[1] * ((-last - 1) % x.var.ndim))
    padding = [0, 0] * ((-last - 1) % x.var.ndim) + [0, last_dim_size - x.var.shape[last]]
    padded = torch.view_as_real(weighted)
    padded = torch.nn.functional.pad(padded, [0, 0, *padding])
    return Moments(mean, _squared(padded[..., 0], padded[..., 1], dim, normalization)[0])


@rule(aten._conj.default, aten.conj_physical.default, approximation=None, takes_complex=True)
def conjugate(x: Moments) -> Moments:
    """a − ib. Exact."""
    return Moments(x.mean.conj_physical(), x.var)


@rule(aten.complex.default, approximation=None)
def of_parts(real: Any, imag: Any) -> Any:
    """a + ib. Exact."""
    real, imag = as_moments(real), as_moments(imag)
    return Moments(torch.complex(real.mean, imag.mean), torch.complex(real.var, imag.var))


FOURIER = RuleSet(transform_real, transform, inverse_to_real, conjugate, of_parts, name="Fourier")
