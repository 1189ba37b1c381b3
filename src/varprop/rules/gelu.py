"""GELU, exact and in its tanh form."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from varprop.errors import RuleError
from varprop.moments import Moments
from varprop.rules.normal import FLOOR, distance, expm1, is_coarse, promote, restore, tail
from varprop.rules.quadrature import by_width, nodes, ramp_and_remainder
from varprop.rules.ruleset import rule

aten = torch.ops.aten

# (t, weight) for ∫₀¹ (1 − t) g(t) dt, fitted to the largest error of GELU's variance over |μ| ≤ 10, v ≤ 100 (a third of
# it for v ≤ 1), weights summing to 1/2: 1.2e-4 (4e-5). Gauss–Jacobi, from which the fit started, leaves 6e-3.
GELU_RULE = (
    (0.08632226461876201, 0.1914334935576109),
    (0.3699007889351575, 0.20359894326194589),
    (0.6801317920887774, 0.08961733240352247),
    (0.9054527974085417, 0.015350230776920715),
)

LIMIT = 0.2  # of the variance, for the series
SHORT = (0.50056616, 0.17171958, 0.04178434)  # in place of 1/2, 1/6, 1/24


def _gradient(x: Moments, of: Moments, *, approximate: str = "none") -> Moments:
    """In closed form for the exact GELU, by Price's theorem: ∂/∂v E g(X) = E g''(X)/2."""
    if approximate != "none":
        return NotImplemented
    (mean, var), of = promote(x), promote(of)
    at = _Place.of(Moments(mean, var), coarse=False)
    second = at.root * at.density * (1 + at.shrink - at.shrink * at.h.square())  # E f''
    third = at.shrink * at.density * at.h * (at.shrink * (at.h.square() - 3) - 1)  # E f'''
    by_mean, by_var = (
        torch.where(var < LIMIT, *pair)
        for pair in zip(_series_gradient(at, var), _integral_gradient(at, var), strict=True)
    )
    result = Moments(
        of.mean * at.slope + of.var * var * (2 * at.slope * second + by_mean),
        of.mean * (0.5 * second) + of.var * (at.slope * (at.slope + var * third) + by_var),
    )
    return restore(result, like=x)


@rule(aten.gelu.default, approximation=None, scaled=True, gradient=_gradient)
def gelu(x: Moments, *, approximate: str = "none") -> Moments:
    """x Φ(x), or its tanh form x σ(√(8/π)(x + 0.044715x³)).

    mean = μΦ(h) + (v/D) φ(h), with D² = 1 + v, h = μ/D. Price's theorem, twice, leaves a variance whose terms are ≥ 0:
    var = v (E f')² + v² ∫₀¹ (1 − r) E[f''(X) f''(X_r)] dr, X_r correlated by r with X
        = v (Φ(h) + (h/D²) φ(h))² + (v/2π) ((1−U)/(1+U)) ∫₀¹ (1−t) (u+U) e^(−gh²) [A² + 2B(B + 2gh²)/D⁴] dt
    where U² = 1/(1+2v), u = 1 − (1−U)t, u² = (1−ρ)/(1+ρ) for ρ = rv/D², g = (1+u²)/2, B = (1/u²−1)/2 and
    A = 1/g + (B + 1 − gh²)/D². For v < 0.2 the same as a series in ρ = v/D², by Hermite polynomials of h:
    var = v (E f')² + v φ(h)² Σ ρ^(k−1)/k! (He_(k−2) − He_k/D²)², k = 2 … 8
    Computed to within 2e-4 of the variance (relative), of the tanh form within 5e-4. In 16 bits, which round to 4e-3,
    the series is used for v < 0.35 and ends at k = 4, with weights for that: within 5e-5 of v.
    """
    wide, coarse = promote(x), is_coarse(x.mean.dtype)
    if approximate == "tanh":
        y = by_width(wide, WIDE, _narrow_tanh, lambda x: ramp_and_remainder(x, TANH_REMAINDER))
    elif approximate == "none":
        y = _exact(wide, coarse=coarse)
    else:
        raise RuleError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
    return restore(y, like=x)


def _exact(x: Moments, *, coarse: bool) -> Moments:
    mean, var = x
    at = _Place.of(x, coarse=coarse)
    limit, series = (0.35, _short_series) if coarse else (LIMIT, _series)
    narrow = at.density.square() * series(at.h, var * at.shrink, at.shrink)
    bent = torch.where(var < limit, narrow, _integral(at.h, var, at.shrink))
    return Moments(mean * at.cdf + var * at.root * at.density, var * (at.slope.square() + bent))


class _Place(NamedTuple):
    """Where the Gaussian stands: h, 1/D, 1/D², Φ(h), φ(h), and the slope E f'."""

    h: Tensor
    root: Tensor
    shrink: Tensor
    cdf: Tensor
    density: Tensor
    slope: Tensor

    @classmethod
    def of(cls, x: Moments, *, coarse: bool) -> _Place:
        root = torch.rsqrt(1 + x.var)
        shrink = root.square()
        h = (x.mean * root).clamp(-60, 60)  # beyond, e^(−h²/2) is 0 in any dtype, and h² may overflow
        outside, density = tail(distance(h), coarse=coarse)
        cdf = torch.where(h > 0, 1 - outside, outside)  # accurate relative to itself, and without another exponential
        return cls(h, root, shrink, cdf, density, cdf + h * shrink * density)


def _series(h: Tensor, rho: Tensor, shrink: Tensor) -> Tensor:
    """Σ ρ^(k−1)/k! (He_(k−2) − He_k/D²)², of which every term is ≥ 0; no exponential, no division."""
    lower, current, power = h, h.square() - 1, rho
    total = 0.5 * power * (1 - shrink * current).square()
    older = torch.ones_like(h)
    for k in range(3, 9):
        older, lower, current = lower, current, h * current - (k - 1) * lower
        power = power * rho
        total = total + (1 / math.factorial(k)) * power * (older - shrink * current).square()
    return total


def _series_gradient(at: _Place, var: Tensor) -> tuple[Tensor, Tensor]:
    """Of v times the series: by μ, over v, and by v. The series is Σ v^k/k! (E f⁽ᵏ⁾)²/v, k = 2 … 8."""
    h, rho = at.h, var * at.shrink
    hermite = [torch.ones_like(h), h]
    for k in range(2, 11):
        hermite.append(h * hermite[-1] - (k - 1) * hermite[-2])
    terms = [hermite[k - 2] - at.shrink * hermite[k] for k in range(2, 11)]  # (−1)^k E f⁽ᵏ⁾ D^(k−1)/φ
    power = at.density.square()
    by_mean = by_var = torch.zeros_like(h)
    for k, (term, after, second) in enumerate(zip(terms, terms[1:], terms[2:], strict=False), start=2):
        power = power * rho
        part = (1 / math.factorial(k)) * power * term
        by_mean = by_mean + part * after
        by_var = by_var + part * (k * term + rho * second)
    return -2 * at.root * by_mean, by_var


def _short_series(h: Tensor, rho: Tensor, shrink: Tensor) -> Tensor:
    """Its first three terms in as few steps as can be, weighted for the least error of the sum over v < 0.35."""
    square = h.square()
    second = (1 + shrink) - shrink * square
    third = second + 2 * shrink  # over h
    fourth = square * (third + 3 * shrink) - (1 + 3 * shrink)
    rest = SHORT[1] * square * third.square() + rho * (SHORT[2] * fourth.square())
    return rho * (SHORT[0] * second.square() + rho * rest)


def _integral(h: Tensor, var: Tensor, shrink: Tensor) -> Tensor:
    """The second term of the variance over v, for any v, by quadrature."""
    end = torch.rsqrt(1 + 2 * var)
    curvature = torch.zeros_like(h)
    for t, weight in GELU_RULE:
        u = (1 - t) + t * end
        g = 0.5 + 0.5 * u.square()
        exponent = g * h.square()
        bend = 0.5 / u.square() - 0.5
        inner = 1 / g + shrink * (bend + 1 - exponent)
        outer = shrink.square() * bend * (bend + 2 * exponent)
        curvature = curvature + weight * (u + end) * torch.exp(-exponent) * (inner.square() + 2 * outer)
    # (1 − U)/(1 + U) without cancellation
    return 2 * var * (end / (1 + end)).square() * curvature / (2 * math.pi)


def _integral_gradient(at: _Place, var: Tensor) -> tuple[Tensor, Tensor]:
    """Of v times the integral: by μ, over v, and by v. Names that end in ``_v`` are derivatives by v at fixed h."""
    h, shrink = at.h, at.shrink
    end = torch.rsqrt(1 + 2 * var)
    end_v, shrink_v = -end * end.square(), -shrink.square()
    curvature = by_h = by_v = torch.zeros_like(h)
    for t, weight in GELU_RULE:
        u, u_v = (1 - t) + t * end, t * end_v
        inverse = 1 / u.square()
        g, g_v = 0.5 + 0.5 * u.square(), u * u_v
        exponent, bend, bend_v = g * h.square(), 0.5 * inverse - 0.5, -u_v * inverse / u
        rest = bend + 1 - exponent
        inner, inner_v = 1 / g + shrink * rest, shrink_v * rest + shrink * bend_v - g_v / g.square()
        outer = bend * (bend + 2 * exponent)
        outer_v = shrink * shrink_v * outer + shrink.square() * bend_v * (bend + exponent)
        factor = weight * torch.exp(-exponent)
        both = inner.square() + 2 * shrink.square() * outer
        slope = factor * (u + end) * (4 * shrink.square() * bend - both - 2 * shrink * inner)  # by the exponent
        curvature = curvature + factor * (u + end) * both
        by_h = by_h + g * slope
        by_v = (
            by_v
            + factor * ((u_v + end_v) * both + (u + end) * (2 * inner * inner_v + 4 * outer_v))
            + (h.square() * g_v * slope)
        )
    scale = var * (end / (1 + end)).square() / math.pi
    by_h = 2 * h * by_h
    by_v = by_v - 0.5 * h * shrink * by_h
    return at.root * scale * by_h, scale * ((2 - 2 * var * end.square() / (1 + end)) * curvature + var * by_v)


SLOPE = math.sqrt(8 / math.pi)
CUBIC = 0.044715 * SLOPE
WIDE = 0.5
SPACED = FLOOR | {torch.float32: 1e-5}  # nodes that are nearer leave their differences too few digits

# (z, weight) of ±z, fitted to the largest error over |μ| ≤ 10, v ≤ 0.5: variance within 3e-4 (relative), mean 6e-6.
TANH_RULE = (
    (0.9943716131109822, 0.24295534958527729),
    (2.004713659370987, 0.0549777440443507),
    (3.065819581830954, 0.004012520933493144),
    (4.257121062204271, 6.11583664328845e-05),
)
# (t, weight) on the half-line, likewise for 0.5 ≤ v ≤ 140: variance within 1.3e-4 (relative), mean 3e-6.
TANH_REMAINDER = nodes(
    lambda t: -t / (1 + math.exp(SLOPE * t + CUBIC * t**3)),
    (
        (0.215664151, 0.34736259),
        (0.66368375, 0.531799099),
        (1.24816196, 0.625619305),
        (1.90147417, 0.67849489),
        (2.60922447, 0.744639627),
        (3.42823686, 0.930772596),
    ),
)


def _narrow_tanh(x: Moments) -> Moments:
    """f(x) = x g(x), g(x) = σ(c(x)), in differences f(μ + d) − f(μ) = d g(μ + d) + μ [g(μ + d) − g(μ)].

    g(μ + d) − g(μ) = g (1 − g) e/(1 + g e), e = exp(c(μ + d) − c(μ)) − 1, does not cancel for μ ≤ 0; otherwise
    f(x) = x + f(−x) is used.
    """
    positive = (x.mean > 0).to(x.mean.dtype)
    mean = x.mean - 2 * positive * x.mean
    raised = x.var + SPACED[x.var.dtype]
    std = raised.sqrt()
    gate = torch.sigmoid(mean * (SLOPE + CUBIC * mean.square()))
    slope = gate * (1 - gate)
    linear, quadratic = SLOPE + 3 * CUBIC * mean.square(), 3 * CUBIC * mean
    shift = square = torch.zeros_like(mean)
    for z, weight in [(sign * z, weight) for z, weight in TANH_RULE for sign in (1, -1)]:
        d = z * std
        growth = expm1((d * (linear + d * (quadratic + CUBIC * d))).clamp(max=80.0))
        rise = slope * growth / (1 + gate * growth)
        difference = d * (gate - positive) + (mean + d) * rise
        shift = shift + weight * difference
        square = square + weight * difference.square()
    share = x.var / raised
    return Moments(positive * x.mean + mean * gate + share * shift, share * (square - shift.square()))
