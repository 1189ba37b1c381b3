"""ELU and its kin: a line above 0, an exponential below."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from varprop.moments import Moments
from varprop.rules.derivative import SELU_ALPHA, SELU_SCALE
from varprop.rules.normal import BEYOND, distance, expm1, floored, in_float32, pdf
from varprop.rules.quadrature import by_width
from varprop.rules.ruleset import RuleSet, rule

aten = torch.ops.aten


@rule(aten.elu.default, approximation=None, scaled=True)
@in_float32
def elu(x: Moments, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Moments:
    """scale·x for x > 0, scale·α (e^(cx) − 1) below, c = input_scale.

    By parts; in float32, whose terms cancel for c²v below about 0.1, there as one of both and what it lacks.
    """
    x = Moments(x.mean.clamp(min=-1e8), x.var)  # −inf is a mask: there is nothing below −scale·α
    settings = scale, scale * alpha, input_scale
    if x.mean.dtype == torch.float64:
        return _elu_by_parts(x, *settings)
    limit = 0.1 / input_scale**2
    return by_width(x, limit, lambda x: _elu_narrow(x, *settings), lambda x: _elu_by_parts(x, *settings))


def _elu_by_parts(x: Moments, scale: float, low: float, rate: float) -> Moments:
    """var = E[(f − E f)²; x > 0] + E[(f − E f)²; x < 0], from E[e^(cx); x < 0] and E[e^(2cx); x < 0]."""
    raised = floored(x.var)
    std = raised.sqrt()
    a = x.mean / std
    above, below = (0.5 * torch.erfc(a * sign * math.sqrt(0.5)) for sign in (-1, 1))
    density = pdf(a)
    once, twice = (_exponential_below(x.mean, raised, power * rate) for power in (1, 2))
    ramp = scale * std * (density + a * above)
    mean = low * (once - below) + ramp
    shifted = low * (once + above) + ramp  # mean + low, without cancellation
    centre = mean - scale * x.mean
    lower = low * low * twice - 2 * low * shifted * once + shifted.square() * below
    gain = scale * std
    upper = gain.square() * (above - a * density) - 2 * gain * centre * density + centre.square() * above
    return Moments(mean, (lower + upper).clamp(min=0) * (x.var / raised))


HALF_LINE = [(3.5 + 3.5 * float(t), 3.5 * float(w)) for t, w in zip(*np.polynomial.legendre.leggauss(16), strict=True)]


def _elu_narrow(x: Moments, scale: float, low: float, rate: float) -> Moments:
    """f = b + h, b the part in which μ lies, continued, and h what it lacks beyond 0, at distances u = √v t:

    Var f = Var b + 2 E[h (b − E b)] + Var h, expectations of h by Gauss–Legendre in t
    """
    raised = floored(x.var)
    std, away = raised.sqrt(), distance(x.mean)
    negative = x.mean <= 0
    exponent = rate * torch.where(negative, x.mean, 0.0) + 0.5 * rate * rate * raised
    height = low * torch.exp(exponent)  # E[b] + low, below 0
    grown = height.square() * expm1(rate * rate * raised)
    mean = torch.where(negative, low * expm1(exponent), scale * x.mean)
    a = (away / std).clamp(max=BEYOND)
    first = second = cross = torch.zeros_like(std)
    for t, weight in HALF_LINE:
        u, mass = std * t, weight * pdf(t + a)
        growth = low * expm1(torch.where(negative, rate * u, -rate * u))
        lacking = torch.where(negative, scale * u - growth, growth + scale * u)
        centred = torch.where(negative, growth + low - height, -scale * (u + away))
        first = first + mass * lacking
        second = second + mass * lacking.square()
        cross = cross + mass * lacking * centred
    var = torch.where(negative, grown, scale * scale * raised) + 2 * cross + second - first.square()
    share = x.var / raised
    return Moments(mean + share * first, share * var.clamp(min=0))


def _exponential_below(mean: Tensor, var: Tensor, rate: float) -> Tensor:
    """E[e^(cx); x < 0] = e^(cμ + c²v/2) Φ(−(μ + cv)/√v), in the one of two forms that neither over- nor underflows."""
    edge = (mean + rate * var) * (2 * var).rsqrt()
    inner = torch.exp((rate * (mean + 0.5 * rate * var)).clamp(max=0)) * torch.erfc(edge.clamp(max=0))
    outer = torch.exp(-0.5 * mean * mean / var) * torch.special.erfcx(edge.clamp(min=0))
    return 0.5 * torch.where(edge < 0, inner, outer)


@rule(aten.celu.default, approximation=None, scaled=True)
def celu(x: Moments, alpha: float = 1.0) -> Moments:
    """x for x > 0, α (e^(x/α) − 1) below."""
    return elu(x, alpha, 1.0, 1 / alpha)


@rule(aten.selu.default, approximation=None, scaled=True)
def selu(x: Moments) -> Moments:
    """ELU with the self-normalising α and scale."""
    return elu(x, SELU_ALPHA, SELU_SCALE)


EXPONENTIAL_LINEAR = RuleSet(elu, celu, selu)
