"""Gaussian integrals the activation rules share, and the precision they are computed in."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of

# What is added to a variance before its root is taken: no variance that matters feels it, and 1/std stays finite.
# It is higher in float64 because the rules there take differences of f at points one std apart.
FLOOR = {torch.float32: 1e-20, torch.float64: 1e-16}


BEYOND = 1e4  # standard deviations: the tail has long been 0 in any dtype, and 0 times what follows stays 0


def promote(x: Moments) -> Moments:
    """``x`` in float32, or in its own dtype where that is wider."""
    return cast(x, torch.promote_types(x.mean.dtype, torch.float32))


def restore(y: Moments, like: Any) -> Moments:
    return cast(y, mean_of(like).dtype)


def cast(x: Moments, dtype: torch.dtype | None) -> Moments:
    return x if dtype is None else Moments(x.mean.to(dtype), x.var.to(dtype))


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a rule compute in float32, or what is wider, and return the dtype of its first random argument."""

    @functools.wraps(function)
    def promoted(*args: Any, **kwargs: Any) -> Any:
        result = function(*(promote(arg) if is_random(arg) else arg for arg in args), **kwargs)
        return result if result is NotImplemented else restore(result, like=next(filter(is_random, args)))

    return promoted


def floored(var: Tensor) -> Tensor:
    """The variance kept off zero, so that its root has a finite gradient."""
    return var + FLOOR[var.dtype]


def expm1(x: Tensor) -> Tensor:
    """eˣ − 1. Inductor compiles ``torch.expm1`` on CPUs as just that, and so loses small x in float32."""
    if x.dtype == torch.float64:
        return torch.expm1(x)
    t = x.clamp(-0.25, 0.25)
    series = t * (1 + t * (1 / 2 + t * (1 / 6 + t * (1 / 24 + t * (1 / 120 + t / 720)))))
    return torch.where(t == x, series, torch.exp(x) - 1)


def pdf(z: Tensor) -> Tensor:
    """φ(z), the standard normal density."""
    return torch.exp(-0.5 * z * z) * (1 / math.sqrt(2 * math.pi))


# Φ(−z)/φ(z) as a polynomial in t = 1/(1 + 0.26 z) without constant term: minimax fit of the relative error over
# 0 ≤ z ≤ 14, which is 2.5e-8. It shares its exponential with φ; erfc, once compiled, costs as much as nine of them.
MILLS_SCALE = 0.26
MILLS = (
    0.2600853939513172,
    0.2582246846695312,
    0.25825865810127746,
    0.1279069801832968,
    0.4034375334460445,
    -0.378374546171893,
    0.6303965960076533,
    -0.38308574323585676,
    0.07646454934859315,
)


# The same with an error of 2.3e-4, for what is rounded to 16 bits in the end.
COARSE_SCALE = 0.3
COARSE_MILLS = (0.2962943721754254, 0.3446072024116103, 0.0892042228809061, 0.5234967686683504)
# And 1 − z Φ(−z)/φ(z), which goes down with t², within 3.7e-4 over 0 ≤ z ≤ 9.
COARSE_EXCESS = (0.0732105048747034, 0.3440447145414159, -0.3394354162613219, 1.160943680020664, -0.23839429667890702)


def is_coarse(dtype: torch.dtype) -> bool:
    """Does rounding to it leave errors of 1e-3 and more?"""
    return dtype in (torch.bfloat16, torch.float16)


def tail(distance: Tensor, *, coarse: bool = False) -> tuple[Tensor, Tensor]:
    """Φ(−z) and φ(z) for z ≥ 0, accurate relative to themselves, which 1 − ``erf`` is not."""
    density = pdf(distance)
    if distance.dtype == torch.float64:
        return 0.5 * torch.erfc(distance * math.sqrt(0.5)), density
    if coarse:
        return density * _polynomial(_coarse_place(distance), COARSE_MILLS), density
    return density * _polynomial(1 / (1 + MILLS_SCALE * distance), MILLS), density


def _coarse_place(distance: Tensor) -> Tensor:
    return torch.rsqrt(1 + COARSE_SCALE * distance).square()  # GPUs divide slowly


def _polynomial(t: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Without a constant term."""
    total = coefficients[-1] * t
    for coefficient in reversed(coefficients[:-1]):
        total = (total + coefficient) * t
    return total


def distance(x: Tensor) -> Tensor:
    """|x|, whose slope at 0 is −1, not 0: an even function of it has the right gradient there."""
    return torch.where(x > 0, x, -x)


class Ramp(NamedTuple):
    """What x⁺ and x⁻ have in common for x ~ N(μ, v): E[x±] − max(±μ, 0), Φ(−|a|) and s(a)s(−a), a = μ/√v."""

    excess: Tensor
    outside: Tensor
    product: Tensor


def ramp(mean: Tensor, var: Tensor, *, coarse: bool = False) -> Ramp:
    """With s(a) = φ(a) + aΦ(a): E[x⁺] = √v s(a) and Var[x⁺] = v [Φ(a) − s(a)s(−a)], which does not cancel.

    Of s(±a) = s(−|a|) + max(±a, 0) only the small part is computed.
    """
    if coarse:
        inverse = torch.rsqrt(floored(var))
        a = (distance(mean) * inverse).clamp(max=BEYOND)
        density, t = pdf(a), _coarse_place(a)
        small = density * t * _polynomial(t, COARSE_EXCESS)
        return Ramp(floored(var) * inverse * small, density * _polynomial(t, COARSE_MILLS), small * (small + a))
    std = floored(var).sqrt()
    a = (distance(mean) / std).clamp(max=BEYOND)
    outside, density = tail(a)
    small = density - a * outside
    return Ramp(std * small, outside, small * (small + a))


def rectified(x: Moments, *, coarse: bool = False) -> Moments:
    """Moments of x⁺."""
    excess, outside, product = ramp(x.mean, x.var, coarse=coarse)
    return Moments(F.relu(x.mean) + excess, x.var * (torch.where(x.mean > 0, 1 - outside, outside) - product))
