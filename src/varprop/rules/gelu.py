"""GELU, exact and in its tanh form."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from varprop.errors import RuleError
from varprop.moments import Moments
from varprop.rules.asymptote import by_width, legendre_nodes, ramp_and_remainder
from varprop.rules.gaussian import at_least, floored, pdf
from varprop.rules.ruleset import rule

aten = torch.ops.aten

# Gauss–Jacobi nodes and weights for ∫₀¹ (1 − t) g(t) dt.
JACOBI = (
    (0.03980985705146872, 0.09678159022665148),
    (0.1980134178736082, 0.1671746380943697),
    (0.43797481024738616, 0.14638698708466985),
    (0.6954642733536361, 0.07390887007261668),
    (0.9014649142011736, 0.0157479145216923),
)


@rule(aten.gelu.default, scaled=True)
@at_least(torch.float32)
def gelu(x: Moments, *, approximate: str = "none") -> Moments:
    """x Φ(x), or its tanh form x σ(√(8/π)(x + 0.044715x³)).

    With D² = 1 + v, h = μ/D:  mean = μΦ(h) + (v/D) φ(h)
    var = v (E f')² + v² ∫₀¹ (1 − u) E[f''(X) f''(X_u)] du, X_u correlated by u with X   (Price's theorem, twice)
    in which every term is ≥ 0; the integral is taken over s, with correlation r = 2s/(1 + s²) after conditioning:
    all that is left in the integrand is rational but for one exponential.
    Approximation: variance within 1e-4 (relative), tanh form 6e-4.
    """
    if approximate == "tanh":
        return _gelu_tanh(x)
    if approximate != "none":
        raise RuleError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    mean, var = x
    shrink = 1 / (1 + var)
    root = shrink.sqrt()
    h = mean * root
    square = h * h
    cdf, density = 0.5 + 0.5 * torch.erf(h * math.sqrt(0.5)), pdf(h)
    slope = cdf + h * shrink * density
    reach = 2 * var / (1 + (1 + 2 * var).sqrt()).square()
    curvature = torch.zeros_like(mean)
    for node, weight in JACOBI:
        s = reach * node
        s2 = s * s
        inverse = 1 / (1 - s2 * s2)
        plus = 1 + s2
        wide, narrow = (inverse * plus * (1 + s)).square() * plus, (inverse * plus * (1 - s)).square() * plus
        # 1/(1 − r) and 1/(1 + r)
        exponent = square * narrow
        part = shrink * narrow
        inner = 1 + part * (wide - exponent)
        excess = wide - 1
        poly = inner * inner + part * part * excess * (4 * exponent + 2 * excess)
        curvature = curvature + weight * (1 - reach * s) * (inverse * (1 - s2)).square() * torch.exp(-exponent) * poly
    return Moments(mean * cdf + var * root * density, var * (slope * slope + reach * curvature * (1 / math.pi)))


LINEAR = math.sqrt(8 / math.pi)
CUBIC = 0.044715 * LINEAR
WIDE = 0.75
STEP, PAIRS = 0.9, 7
TOTAL = math.fsum(math.exp(-0.5 * (STEP * k) ** 2) for k in range(-PAIRS, PAIRS + 1))
NODES = [(STEP * k, math.exp(-0.5 * (STEP * k) ** 2) / TOTAL) for k in range(-PAIRS, PAIRS + 1) if k]
TANH_NODES = legendre_nodes(lambda t: -t / (1 + math.exp(LINEAR * t + CUBIC * t**3)), count=8, reach=4.0)


def _gelu_tanh(x: Moments) -> Moments:
    y = by_width(x, WIDE, _gelu_tanh_narrow, lambda x: ramp_and_remainder(x, TANH_NODES))
    return Moments(y.mean, y.var.clamp(min=0))


def _gelu_tanh_narrow(x: Moments) -> Moments:
    """Trapezoidal sum over f(μ + d) − f(μ) = d g(μ + d) + μ [g(μ + d) − g(μ)], g(x) = σ(c(x)), c cubic.

    g(μ + d) − g(μ) = g(1 − g) e/(1 + g e) with e = exp(c(μ + d) − c(μ)) − 1 does not cancel for μ ≤ 0; for μ > 0
    use f(x) = x + f(−x).
    """
    positive = (x.mean > 0).to(x.mean.dtype)
    mean = x.mean - 2 * positive * x.mean
    raised = floored(x.var)
    std = raised.sqrt()
    gate = torch.sigmoid(mean * (LINEAR + CUBIC * mean * mean))
    slope = gate * (1 - gate)
    linear, quadratic = LINEAR + 3 * CUBIC * mean * mean, 3 * CUBIC * mean
    shift = square = torch.zeros_like(mean)
    for z, weight in NODES:
        d = z * std
        exponent = (d * (linear + d * (quadratic + CUBIC * d))).clamp(max=80.0)
        growth = torch.expm1(exponent)
        rise = slope * growth / (1 + gate * growth)
        difference = d * (gate - positive + rise) + mean * rise
        shift = shift + weight * difference
        square = square + weight * difference.square()
    return Moments(F.gelu(x.mean, approximate="tanh") + shift, (square - shift * shift) * (x.var / raised))
