"""Activations made of the logistic function: sigmoid, tanh, SiLU, QuickGELU, softplus, log-sigmoid.

Up to a variance of 3 (in the argument of σ) the integral over x = μ + √v z is a trapezoidal sum over pairs z = ±kη, in
differences f(x) − f(μ) that do not cancel. For σ they are rational in p = σ'(μ) and Q = 2 cosh(kη√v) − 2:

σ(μ ± d) − σ(μ) = p [±sinh d − T Q/2] / (1 + pQ)        T = σ(μ) − σ(−μ) = tanh(μ/2)

Q/v and sinh(d)/√v are entire functions of v that obey a recurrence in k, so no node needs an exponential, and nothing
is singular at v = 0. Beyond that variance see ``asymptote``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop import ops
from varprop.moments import Moments
from varprop.rules.asymptote import by_width, laguerre_nodes, ramp_and_remainder, step_and_remainder
from varprop.rules.gaussian import at_least, floored
from varprop.rules.ruleset import rule

aten = torch.ops.aten

WIDE = 3.0
STEP, PAIRS = 0.75, 9
TOTAL = math.fsum(math.exp(-0.5 * (STEP * k) ** 2) for k in range(-PAIRS, PAIRS + 1))
WEIGHTS = [math.exp(-0.5 * (STEP * k) ** 2) / TOTAL for k in range(1, PAIRS + 1)]

SIGMOID_NODES = laguerre_nodes(lambda t: 1 / (1 + math.exp(t)), count=9, scale=0.45)
SILU_NODES = laguerre_nodes(lambda t: -t / (1 + math.exp(t)), count=9, scale=0.45)
SOFTPLUS_NODES = laguerre_nodes(lambda t: math.log1p(math.exp(-t)), count=9, scale=0.45)


class Pair(NamedTuple):
    """The nodes z = ±kη: their weight, k, Q/v and sinh(d)/(η√v) with d = kη√v."""

    weight: float
    k: int
    q: Tensor
    sinh: Tensor


def _pairs(var: Tensor) -> list[Pair]:
    square = STEP**2 * var
    # Taylor series of 2(cosh √u − 1)/u and sinh(√u)/√u; u ≤ 1.7 leaves less than 1e-8.
    first = STEP**2 * (1 + square * (1 / 12 + square * (1 / 360 + square * (1 / 20160 + square / 1814400))))
    sinh = 1 + square * (1 / 6 + square * (1 / 120 + square * (1 / 5040 + square / 362880)))
    q = var * first
    pairs = []
    for k in range(1, PAIRS + 1):
        chebyshev = [2 * k * math.comb(k + j, 2 * j) / (k + j) for j in range(1, k + 1)]
        second = [math.comb(k + j, 2 * j + 1) for j in range(k)]
        pairs.append(Pair(WEIGHTS[k - 1], k, first * _polynomial(chebyshev, q), sinh * _polynomial(second, q)))
    return pairs


def _polynomial(coefficients: list[float], x: Tensor) -> Tensor:
    result = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + coefficient
    return result


def _gates(mean: Tensor) -> tuple[Tensor, Tensor]:
    """σ(μ) and σ(−μ), each accurate relative to itself."""
    positive = mean > 0
    decay = torch.exp(torch.where(positive, -mean, mean))
    large = 1 / (1 + decay)
    return torch.where(positive, large, decay * large), torch.where(positive, decay * large, large)


def _scale(x: Moments, factor: float) -> Moments:
    return Moments(factor * x.mean, factor * factor * x.var)


def _nonnegative(x: Moments) -> Moments:
    return Moments(x.mean, x.var.clamp(min=0))


def _logistic(x: Moments) -> Moments:
    """Moments of σ(x) − σ(μ)."""
    gate, other = _gates(x.mean)

    def narrow(x: Moments) -> Moments:
        slope, tilt = gate * other, gate - other
        shift = square = torch.zeros_like(x.mean)
        for weight, _, q, _ in _pairs(x.var):
            even = q / (1 + slope * x.var * q)
            shift = shift + weight * even
            square = square + weight * even * (2 + tilt * tilt * x.var * even)
        spread = square - tilt * tilt * x.var * shift * shift
        return Moments(-slope * tilt * x.var * shift, slope * slope * x.var * spread)

    def wide(x: Moments) -> Moments:
        y = step_and_remainder(x, SIGMOID_NODES)
        return Moments(y.mean - gate, y.var)

    return _nonnegative(by_width(x, WIDE, narrow, wide))


@rule(aten.sigmoid.default, scaled=True)
@at_least(torch.float32)
def sigmoid(x: Moments) -> Moments:
    """σ(x) = 1/(1 + e⁻ˣ), by quadrature in differences that do not cancel.

    Approximation: variance within 1e-4 (relative).
    """
    y = _logistic(x)
    return Moments(torch.sigmoid(x.mean) + y.mean, y.var)


@rule(aten.tanh.default, scaled=True)
@at_least(torch.float32)
def tanh(x: Moments) -> Moments:
    """tanh(x) = 2σ(2x) − 1.

    Approximation: variance within 2e-4 (relative).
    """
    y = _logistic(_scale(x, 2.0))
    return Moments(torch.tanh(x.mean) + 2 * y.mean, 4 * y.var)


def _silu(x: Moments) -> Moments:
    def narrow(x: Moments) -> Moments:
        gate, other = _gates(x.mean)
        slope, tilt = gate * other, gate - other
        shift = square = torch.zeros_like(x.mean)
        for weight, k, q, sinh in _pairs(x.var):
            rise = slope / (1 + slope * x.var * q)
            # (f(μ + d) + f(μ − d) − 2f(μ))/v and (f(μ + d) − f(μ − d))/(η√v)
            even = rise * (2 * k * STEP**2 * sinh - x.mean * tilt * q)
            odd = k * (2 * gate - tilt * rise * x.var * q) + 2 * x.mean * rise * sinh
            shift = shift + weight * even
            square = square + weight * (x.var * even * even + STEP**2 * odd * odd)
        return Moments(F.silu(x.mean) + x.var * shift, x.var * (0.5 * square - x.var * shift * shift))

    return _nonnegative(by_width(x, WIDE, narrow, lambda x: ramp_and_remainder(x, SILU_NODES)))


@rule(aten.silu.default, scaled=True)
@at_least(torch.float32)
def silu(x: Moments) -> Moments:
    """x σ(x), by quadrature in differences that do not cancel.

    Approximation: variance within 4e-4 (relative).
    """
    return _silu(x)


@rule(ops.quick_gelu, scaled=True)
@at_least(torch.float32)
def quick_gelu_moments(x: Moments) -> Moments:
    """x σ(1.702x) = silu(1.702x)/1.702.

    Approximation: variance within 1e-3 (relative).
    """
    return _scale(_silu(_scale(x, 1.702)), 1 / 1.702)


def _softplus(x: Moments) -> Moments:
    def narrow(x: Moments) -> Moments:
        gate, other = _gates(x.mean)
        raised = floored(x.var)
        first = torch.expm1(STEP * raised.sqrt())
        growth = first
        shift = square = torch.zeros_like(x.mean)
        for weight, _, q, _ in _pairs(x.var):
            up = torch.log1p(gate * growth)  # f(μ + d) − f(μ)
            both = torch.log1p(gate * other * x.var * q)  # and f(μ − d) − f(μ) added
            shift = shift + weight * both
            square = square + weight * (up * up + (both - up).square())
            growth = growth + first + growth * first
        return Moments(F.softplus(x.mean) + shift, (square - shift * shift) * (x.var / raised))

    return _nonnegative(by_width(x, WIDE, narrow, lambda x: ramp_and_remainder(x, SOFTPLUS_NODES)))


@rule(aten.softplus.default, scaled=True)
@at_least(torch.float32)
def softplus(x: Moments, beta: float = 1, threshold: float = 20) -> Moments:
    """log(1 + e^βx)/β, by quadrature in differences that do not cancel.

    Approximation: variance within 1e-4 (relative); torch's straight line from βx = threshold on is not modelled.
    """
    return _scale(_softplus(_scale(x, beta)), 1 / beta)


@rule(aten.log_sigmoid.default, scaled=True)
@at_least(torch.float32)
def log_sigmoid(x: Moments) -> Moments:
    """log σ(x) = −softplus(−x).

    Approximation: variance within 1e-4 (relative).
    """
    y = _softplus(Moments(-x.mean, x.var))
    return Moments(-y.mean, y.var)
