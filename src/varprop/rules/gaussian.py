"""Gaussian integrals the activation rules share, and the precision they are computed in."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from varprop.errors import RuleError
from varprop.moments import Moments

# What is added to a variance before its root is taken: no variance that matters feels it, and 1/std stays finite.
# It is higher in float64 because the rules there take differences of f at points one std apart.
FLOOR = {torch.float32: 1e-20, torch.float64: 1e-16}


def promote(x: Moments, dtype: torch.dtype) -> Moments:
    """``x`` in ``dtype``, or in its own where that is wider."""
    work = torch.promote_types(x.mean.dtype, dtype)
    return Moments(x.mean.to(work), x.var.to(work))


def restore(y: Moments, like: Moments) -> Moments:
    return Moments(y.mean.to(like.mean.dtype), y.var.to(like.var.dtype))


def at_least(dtype: torch.dtype) -> Callable[[Callable[..., Moments]], Callable[..., Moments]]:
    """Make a rule compute in ``dtype`` or wider, and hand back the dtypes that came in."""

    def decorate(function: Callable[..., Moments]) -> Callable[..., Moments]:
        @functools.wraps(function)
        def promoted(x: Moments, *args: Any, **kwargs: Any) -> Moments:
            if not isinstance(x, Moments):
                raise RuleError(f"{function.__name__}: only its first argument may be random, and it is not")
            return restore(function(promote(x, dtype), *args, **kwargs), like=x)

        return promoted

    return decorate


def floored(var: Tensor) -> Tensor:
    """The variance kept off zero, so that its root has a finite gradient."""
    return var + FLOOR[var.dtype]


def pdf(z: Tensor) -> Tensor:
    """φ(z), the standard normal density."""
    return torch.exp(-0.5 * z * z) * (1 / math.sqrt(2 * math.pi))


# Φ(−z)/φ(z) as a polynomial in t = 1/(1 + 0.26 z) without constant term: minimax fit of the relative error over
# 0 ≤ z ≤ 14, which is 2.5e-8. It shares its exponential with φ; erfc costs five times as much once compiled.
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


def tails(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Φ(z), Φ(−z) and φ(z); the smaller tail is accurate relative to itself, which ``erf`` and ``ndtr`` are not."""
    density = pdf(z)
    if z.dtype == torch.float64:
        return 0.5 * torch.erfc(z * -math.sqrt(0.5)), 0.5 * torch.erfc(z * math.sqrt(0.5)), density
    positive = z > 0
    t = 1 / (1 + MILLS_SCALE * torch.where(positive, z, -z))  # not abs(), whose gradient at 0 is 0
    ratio = torch.zeros_like(t)
    for coefficient in reversed(MILLS):
        ratio = (ratio + coefficient) * t
    small = density * ratio
    return torch.where(positive, 1 - small, small), torch.where(positive, small, 1 - small), density


def rectified(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E[x⁺], Φ(a) and s(a)s(−a) for x ~ N(μ, v), with a = μ/√v and s(a) = φ(a) + aΦ(a).

    Var[x⁺] = v [Φ(a) − s(a)s(−a)], which does not cancel as E[y²] − E[y]² does; s(−a) = s(a) − a.
    """
    std = floored(var).sqrt()
    a = mean / std
    above, _, density = tails(a)
    s = density + a * above
    return mean * above + std * density, above, s * (s - a)
