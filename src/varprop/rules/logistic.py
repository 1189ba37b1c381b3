"""Activations made of the logistic function: sigmoid, tanh, SiLU, QuickGELU, softplus, log-sigmoid.

Up to a variance of 4 (in the argument of σ) the integral over x = μ + √v z is a trapezoidal sum over pairs z = ±kη, in
differences f(x) − f(μ) that do not cancel. Those of σ are rational in p = σ'(μ), T = σ(μ) − σ(−μ) and, with d = kη√v,
Q = 2 cosh d − 2:

σ(μ ± d) − σ(μ) = p (±sinh d − T Q/2) / (1 + pQ)

and addition theorems give every Q and sinh d from those of k = 1, so a pair costs one division and no exponential, and
nothing is singular at v = 0. Wider Gaussians: see ``quadrature``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.moments import Moments
from varprop.rules import functions
from varprop.rules.arithmetic import multiply
from varprop.rules.normal import floored, in_float32
from varprop.rules.quadrature import by_width, integrate_op, nodes, ramp_and_remainder, step_and_remainder
from varprop.rules.ruleset import RuleSet, rule

aten = torch.ops.aten

WIDE = 4.0
NO_JUMP = 15.0  # log(1 + e⁻¹⁵) is less than 1e-6
STEP, PAIRS = 0.62, 10
TOTAL = math.fsum(math.exp(-0.5 * (STEP * k) ** 2) for k in range(-PAIRS, PAIRS + 1))
WEIGHTS = [math.exp(-0.5 * (STEP * k) ** 2) / TOTAL for k in range(PAIRS + 1)]

# Half-line rules (t, weight) fitted to the largest error of mean and variance over |μ| ≤ 20 (SiLU 17, softplus 10),
# 4 ≤ v ≤ 560: variance within 1.4e-4, 8e-5 and 7e-5 (relative), mean within 6e-6, 2e-6 and 2e-6.
SIGMOID_REMAINDER = nodes(
    lambda t: 1 / (1 + math.exp(t)),
    (
        (0.238483961, 0.605252008),
        (1.20474417, 1.30609359),
        (2.83764154, 1.97066642),
        (5.18225652, 2.74048402),
        (8.42357953, 3.83498371),
    ),
)
SILU_REMAINDER = nodes(
    lambda t: -t / (1 + math.exp(t)),
    (
        (0.485138083, 0.795309855),
        (1.56035844, 1.34505416),
        (3.16451537, 1.86227056),
        (5.2864547, 2.3849187),
        (7.95885546, 2.98853245),
        (11.4111688, 4.09384932),
    ),
)
SOFTPLUS_REMAINDER = nodes(
    lambda t: math.log1p(math.exp(-t)),
    (
        (0.199656808, 0.510909223),
        (1.0417844, 1.17208138),
        (2.55148977, 1.85267428),
        (4.7570664, 2.56945899),
        (7.78274333, 3.60392814),
    ),
)


def _pairs(var: Tensor) -> Iterator[tuple[float, int, Tensor, Tensor]]:
    """Weight, k, Q = 2 cosh(kδ) − 2 and sinh(kδ)/δ of every pair; δ = η√v.

    2 sinh(δ/2)/δ is the exponential of a power series in δ²; three terms leave 1e-6 at v = 4.
    """
    square = STEP**2 * var
    log_half = square * (1 / 24 + square * (-1 / 2880 + square / 181440))
    first = square * torch.exp(2 * log_half)
    q, sinh = {1: first}, {1: torch.exp(log_half) * (1 + 0.25 * first).sqrt()}
    for k in range(1, PAIRS + 1):
        # Not a recurrence in k: Inductor inlines what it fuses, and would write a Fibonacci tree of terms.
        if k % 2 == 0:
            q[k] = q[k // 2] * (4 + q[k // 2])
            sinh[k] = sinh[k // 2] * (2 + q[k // 2])
        elif k > 1:
            q[k] = first * _odd_multiple(k, first).square()
            sinh[k] = sinh[1] * _odd_multiple(k, q[2])
        yield WEIGHTS[k], k, q[k], sinh[k]


def _odd_multiple(k: int, x: Tensor) -> Tensor:
    """sinh(kδ)/sinh(δ), k odd, as a polynomial in x = 4 sinh²δ = 2 cosh(2δ) − 2."""
    n = k // 2
    result = x + k
    for j in range(n - 2, -1, -1):
        result = result * x + k * math.comb(n + j, 2 * j) // (2 * j + 1)
    return result


def _gates(mean: Tensor) -> tuple[Tensor, Tensor]:
    """σ(μ) and σ(−μ), each accurate relative to itself."""
    positive = mean > 0
    decay = torch.exp(torch.where(positive, -mean, mean))
    large = 1 / (1 + decay)
    return torch.where(positive, large, decay * large), torch.where(positive, decay * large, large)


def _logistic(x: Moments) -> Moments:
    """Moments of σ(x) − σ(μ)."""
    gate, other = _gates(x.mean)

    def narrow(x: Moments) -> Moments:
        slope, tilt = gate * other, gate - other
        first = second = torch.zeros_like(x.mean)
        for weight, _, q, _ in _pairs(x.var):
            ratio = q / (1 + slope * q)
            first = first + weight * ratio
            second = second + weight * ratio.square()
        spread = 2 * first + tilt.square() * (second - first.square())
        return Moments(-slope * tilt * first, slope.square() * spread)

    def wide(x: Moments) -> Moments:
        y = step_and_remainder(x, SIGMOID_REMAINDER)
        return Moments(y.mean - gate, y.var)

    return by_width(x, WIDE, narrow, wide)


@rule(aten.sigmoid.default, approximation=None, scaled=True)
@in_float32
def sigmoid(x: Moments) -> Moments:
    """σ(x) = 1/(1 + e⁻ˣ), by quadrature. Computed to within 2e-4 of the variance (relative)."""
    y = _logistic(x)
    return Moments(_gates(x.mean)[0] + y.mean, y.var)


@rule(aten.tanh.default, approximation=None, scaled=True)
@in_float32
def tanh(x: Moments) -> Moments:
    """tanh(x) = 2σ(2x) − 1, by quadrature. Computed to within 4e-4 of the variance (relative)."""
    y = _logistic(multiply(x, 2.0))
    return Moments(torch.tanh(x.mean) + 2 * y.mean, 4 * y.var)


@rule(aten.silu.default, approximation=None, scaled=True)
@in_float32
def silu(x: Moments) -> Moments:
    """x σ(x), by quadrature. Computed to within 3e-4 of the variance (relative).

    Of s± = f(μ ± d) − f(μ) the sum, even in δ, and the difference over δ are computed; neither cancels.
    """

    def narrow(x: Moments) -> Moments:
        gate, other = _gates(x.mean)
        slope, tilt = gate * other, gate - other
        step2 = STEP**2 * x.var
        shift = square = torch.zeros_like(x.mean)
        for weight, k, q, sinh in _pairs(x.var):
            rise = slope / (1 + slope * q)
            even = rise * (2 * k * step2 * sinh - x.mean * tilt * q)
            odd = 2 * k * gate + rise * (2 * x.mean * sinh - k * tilt * q)
            shift = shift + weight * even
            square = square + 0.5 * weight * (even.square() + step2 * odd.square())
        return Moments(x.mean * gate + shift, square - shift.square())

    return by_width(x, WIDE, narrow, lambda x: ramp_and_remainder(x, SILU_REMAINDER))


@rule(functions.quick_gelu, approximation=None, scaled=True)
@in_float32
def quick_gelu(x: Moments) -> Moments:
    """x σ(1.702x) = silu(1.702x)/1.702, by quadrature. Computed to within 3e-4 of the variance (relative)."""
    return multiply(silu(multiply(x, 1.702)), 1 / 1.702)


def _softplus(x: Moments) -> Moments:
    """Of s± = f(μ ± d) − f(μ): s₊ = log(1 + σ(μ) (e^d − 1)) and s₊ + s₋ = log(1 + pQ)."""

    def narrow(x: Moments) -> Moments:
        gate, other = _gates(x.mean)
        slope = gate * other
        raised = floored(x.var)
        step = STEP * raised.sqrt()
        shift = square = torch.zeros_like(x.mean)
        for weight, _, q, sinh in _pairs(x.var):
            up = torch.log1p(gate * (step * sinh + 0.5 * q))
            both = torch.log1p(slope * q)
            shift = shift + weight * both
            square = square + weight * (up.square() + (both - up).square())
        return Moments(F.softplus(x.mean) + shift, (square - shift.square()) * (x.var / raised))

    return by_width(x, WIDE, narrow, lambda x: ramp_and_remainder(x, SOFTPLUS_REMAINDER))


@rule(aten.softplus.default, approximation=None, scaled=True)
@in_float32
def softplus(x: Moments, beta: float = 1, threshold: float = 20) -> Moments:
    """log(1 + e^βx)/β, by quadrature.

    Computed to within 2e-4 of the variance (relative). Past βx = ``threshold`` torch goes on in a straight line, which
    is a jump that matters only for low thresholds.
    """
    if threshold < NO_JUMP:
        return integrate_op(aten.softplus.default, x, beta, threshold)
    return multiply(_softplus(multiply(x, beta)), 1 / beta)


@rule(aten.log_sigmoid.default, approximation=None, scaled=True)
@in_float32
def log_sigmoid(x: Moments) -> Moments:
    """log σ(x) = −softplus(−x), by quadrature. Computed to within 2e-4 of the variance (relative)."""
    y = _softplus(Moments(-x.mean, x.var))
    return Moments(-y.mean, y.var)


LOGISTIC = RuleSet(sigmoid, tanh, silu, quick_gelu, softplus, log_sigmoid)
