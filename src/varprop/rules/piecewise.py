"""Activations made of straight lines, parabolas and steps. Their moments are closed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.errors import RuleError
from varprop.moments import Moments, is_random, mean_of
from varprop.rules.derivative import BOUNDS
from varprop.rules.normal import distance, floored, in_float32, is_coarse, pdf, promote, ramp, rectified, restore, tail
from varprop.rules.ruleset import Op, RuleSet, rule, rule_for_each

aten = torch.ops.aten
FAR = 1e9


@rule(aten.relu.default, approximation=None, scaled=True)
def relu(x: Moments) -> Moments:
    """max(x, 0). With a = μ/√v, s(a) = φ(a) + aΦ(a): mean = √v s(a), var = v [Φ(a) − s(a)s(−a)].

    In 16 bits, which round to 4e-3, by polynomials of few terms: within 1.4e-3, where μ ≥ −5√v (2 % at −9√v).
    """
    y = rectified(promote(x), coarse=is_coarse(x.mean.dtype))
    return restore(Moments(y.mean, y.var.clamp(min=0)), like=x)


def _rectify(x: Moments, slope: Any, slope_var: Any = None) -> Moments:
    """x for x > 0, w·x below, E[w] = slope: the difference of x⁺ and w x⁻, of which one is always 0.

    var = v [Φ(a) + slope² Φ(−a) − (1 − slope)² s(a)s(−a)] + Var[w] E[(x⁻)²]
    """
    excess, outside, product = ramp(x.mean, x.var)
    positive = x.mean > 0
    below = torch.where(positive, outside, 1 - outside)
    spread = torch.where(positive, 1 - outside, outside) + slope * slope * below - (1 - slope) ** 2 * product
    mean = torch.where(positive, x.mean, slope * x.mean) + (1 - slope) * excess
    var = (x.var * spread).clamp(min=0)
    if slope_var is not None:
        var = var + slope_var * (x.var * (below - product) + (F.relu(-x.mean) + excess).square())
    return Moments(mean, var)


@rule(aten.leaky_relu.default, approximation=None, scaled=True)
@in_float32
def leaky_relu(x: Moments, negative_slope: float = 0.01) -> Moments:
    """x for x > 0, slope·x below. var = v [Φ(a) + slope² Φ(−a) − (1 − slope)² s(a)s(−a)], see relu."""
    return _rectify(x, negative_slope)


@rule(aten.abs.default, approximation=None, scaled=True)
@in_float32
def absolute(x: Moments) -> Moments:
    """|x|, a leaky ReLU of slope −1."""
    return _rectify(x, -1.0)


@rule(aten.prelu.default, approximation=None, scaled=True)
def prelu(x: Any, weight: Any) -> Moments:
    """x for x > 0, w·x below, w per channel: leaky_relu's rule, plus Var[w] E[(x⁻)²] where w is random."""
    if not is_random(x):
        x = Moments(x, torch.zeros_like(x))
    channels = (-1, *[1] * (x.mean.ndim - 2)) if x.mean.ndim > 1 else ()
    slope_var = weight.var.reshape(channels) if is_random(weight) else None
    return in_float32(_rectify)(x, mean_of(weight).reshape(channels), slope_var)


@in_float32
def piecewise(x: Moments, value: Tensor, knots: Sequence[Any], pieces: Sequence[Sequence[Any]]) -> Moments:
    """Polynomials of degree ≤ 2, as coefficients of 1, x, x², between ascending knots; ``value`` is f(μ), for v = 0.

    var = Σ ∫ (f − E f)² over the pieces, by the moments ∫ zⁿ φ(z) dz of each, n ≤ 4. Values are taken relative to that
    at μ of the piece in which it lies, and masses as differences of tails: nothing cancels that is not small.
    """
    raised = floored(x.var)
    std = raised.sqrt()
    ends = [_end((knot - x.mean) / std) for knot in knots]
    between = [_moments(a, b) for a, b in itertools.pairwise([None, *ends, None])]
    local = [_around(x.mean, std, *piece) for piece in pieces]
    here = local[0][0]
    for knot, (c0, _, _) in zip(knots, local[1:], strict=True):
        here = torch.where(x.mean > knot, c0, here)
    local = [
        (c0 - here + z * (c1 + z * c2), c1 + 2 * z * c2, c2)
        for (c0, c1, c2), (z, *_) in zip(local, between, strict=True)
    ]
    shift = torch.zeros_like(std)
    for (c0, c1, c2), (_, m0, m1, m2, _, _) in zip(local, between, strict=True):
        shift = shift + c0 * m0 + c1 * m1 + c2 * m2
    var = torch.zeros_like(std)
    for (c0, c1, c2), (_, m0, m1, m2, m3, m4) in zip(local, between, strict=True):
        d = c0 - shift
        var = var + d * d * m0 + 2 * d * c1 * m1 + (c1 * c1 + 2 * d * c2) * m2 + 2 * c1 * c2 * m3 + c2 * c2 * m4
    return Moments(torch.where(x.var > 0, here + shift, value), var.clamp(min=0) * (x.var / raised))


class _End(NamedTuple):
    """A knot at z, with Φ(z), Φ(−z) and φ(z)."""

    z: Tensor
    below: Tensor
    above: Tensor
    density: Tensor


def _end(z: Tensor) -> _End:
    z = z.clamp(-40, 40)  # beyond, the density is 0 in any precision, and stays so times powers of z
    outside, density = tail(distance(z))
    positive = z > 0
    return _End(z, torch.where(positive, 1 - outside, outside), torch.where(positive, outside, 1 - outside), density)


LEGENDRE = [(float(t), float(w)) for t, w in zip(*np.polynomial.legendre.leggauss(8), strict=True)]


def _moments(a: _End | None, b: _End | None) -> list[Any]:
    """A point c, and ∫ (z − c)ⁿ φ(z) dz from a to b, n = 0 … 4; None is infinity.

    c is 0 in a piece around it, the near end of a piece in a tail, the middle of a narrow piece: about a point far from
    its mass, a piece's moments and polynomials in them cancel.
    """
    near = (0.0 if a is None else F.relu(a.z)) - (0.0 if b is None else F.relu(-b.z))
    if a is None or b is None:
        mass = b.below if b is not None else a.above if a is not None else 1.0
        return [near, *_about(near, mass, a, b)]
    wide = _about(near, torch.where(a.z > 0, a.above - b.above, b.below - a.below), a, b)
    half, middle = 0.5 * (b.z - a.z), 0.5 * (b.z + a.z)
    narrow = half < 0.5
    points = [(half * t, half * weight * pdf(middle + half * t)) for t, weight in LEGENDRE]
    about_middle = [sum(mass * t**n for t, mass in points) for n in range(5)]
    moments = [torch.where(narrow, own, other) for own, other in zip(about_middle, wide, strict=True)]
    return [torch.where(narrow, middle, near), *moments]


def _about(centre: Any, mass: Any, a: _End | None, b: _End | None) -> list[Any]:
    """By parts: Iₙ = (n − 1) Iₙ₋₂ − c Iₙ₋₁ − [(z − c)ⁿ⁻¹ φ(z)] from a to b."""
    edges = [(sign * end.density, end.z - centre) for sign, end in ((1, a), (-1, b)) if end is not None]
    moments = [mass, sum(edge for edge, _ in edges) - centre * mass]
    for n in range(2, 5):
        edges = [(edge * z, z) for edge, z in edges]
        moments.append((n - 1) * moments[-2] - centre * moments[-1] + sum(edge for edge, _ in edges))
    return moments


def _around(mean: Tensor, std: Tensor, c0: Any, c1: float = 0.0, c2: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """The coefficients in z of a polynomial in x = μ + σz."""
    return c0 + mean * (c1 + c2 * mean), (c1 + 2 * c2 * mean) * std, c2 * std.square()


# Knots and the pieces between them, given the op's further arguments.
PIECES: dict[Any, Callable[..., tuple[Sequence[Any], Sequence[Sequence[Any]]]]] = {
    aten.hardshrink.default: lambda lambd=0.5: ((-lambd, lambd), ((0.0, 1.0), (0.0,), (0.0, 1.0))),
    aten.hardsigmoid.default: lambda: ((-3.0, 3.0), ((0.0,), (0.5, 1 / 6), (1.0,))),
    aten.hardswish.default: lambda: ((-3.0, 3.0), ((0.0,), (0.0, 0.5, 1 / 6), (0.0, 1.0))),
    aten.softshrink.default: lambda lambd=0.5: ((-lambd, lambd), ((lambd, 1.0), (0.0,), (-lambd, 1.0))),
    aten.threshold.default: lambda threshold, value: ((threshold,), ((value,), (0.0, 1.0))),
}


@rule_for_each(*PIECES, approximation=None, scaled=True)
def piecewise_activation(op: Op, x: Moments, *args: Any, **kwargs: Any) -> Moments:
    """By ``PIECES``. Hardswish's variance is within 2e-3 in float32 where only the tail reaches the parabola."""
    return piecewise(x, op(x.mean, *args, **kwargs), *PIECES[op](*args, **kwargs))


@rule_for_each(*BOUNDS, approximation=None, scaled=True)
def clamp(op: Op, x: Any, *args: Any, **kwargs: Any) -> Any:
    """min(max(x, lower), upper), either of which may be missing, or be a tensor; neither may be random."""
    lower, upper = BOUNDS[op](*args, **kwargs)
    if not is_random(x) or is_random(lower) or is_random(upper):
        return NotImplemented
    if upper is None:
        return _from_below(x, lower)
    if lower is None:
        return _from_above(x, upper)
    if isinstance(lower, Tensor) or lower < -FAR or upper > FAR:
        return _within_reach(x, lower, upper)
    least = min(lower, upper)  # torch lets the upper bound win
    return piecewise(x, x.mean.clamp(lower, upper), (least, upper), ((least,), (0.0, 1.0), (upper,)))


@in_float32
def _from_below(x: Moments, lower: Any) -> Moments:
    """max(x, lower) = lower + relu(x − lower)."""
    above = Moments(x.mean - lower, x.var)
    return Moments(x.mean.clamp(min=lower) + ramp(*above).excess, relu(above).var)


@in_float32
def _from_above(x: Moments, upper: Any) -> Moments:
    """min(x, upper) = upper − relu(upper − x)."""
    below = Moments(upper - x.mean, x.var)
    return Moments(x.mean.clamp(max=upper) - ramp(*below).excess, relu(below).var)


@in_float32
def _within_reach(x: Moments, *bounds: Any) -> Moments:
    """clamp between any bounds. One that x never reaches may as well be nearer, where its square is a number."""
    low, high = (bound if isinstance(bound, Tensor) else torch.full_like(x.mean, bound) for bound in bounds)
    reach = x.mean.abs() + 50 * floored(x.var).sqrt() + 1
    upper = torch.minimum(high, reach)
    lower = torch.minimum(torch.maximum(low, -reach), upper)
    return piecewise(x, x.mean.clamp(low, high), (lower, upper), ((lower,), (0.0, 1.0), (upper,)))


def _step(x: Moments, value: Tensor) -> Moments:
    """1[x > 0]: mean Φ(a), var Φ(a)Φ(−a); ``value`` is f(μ), for v = 0."""
    outside, _ = tail(distance(x.mean) / floored(x.var).sqrt())
    random = x.var > 0
    above = torch.where(x.mean > 0, 1 - outside, outside)
    return Moments(
        torch.where(random, above, value), torch.where(random, outside * (1 - outside), torch.zeros_like(x.var))
    )


@rule(aten.heaviside.default, approximation=None, scaled=True)
@in_float32
def heaviside(x: Moments, values: Tensor) -> Moments:
    """1 for x > 0, 0 below; mean Φ(μ/√v), var Φ(μ/√v) Φ(−μ/√v)."""
    if is_random(values):
        raise RuleError("heaviside: the value at 0 cannot be random")
    return _step(x, torch.heaviside(x.mean.detach(), values.to(x.mean.dtype)))


@rule(aten.sign.default, approximation=None, scaled=True)
@in_float32
def sign(x: Moments) -> Moments:
    """±1: twice the step, less 1."""
    y = _step(x, 0.5 + 0.5 * torch.sign(x.mean))
    return Moments(2 * y.mean - 1, 4 * y.var)


PIECEWISE = RuleSet(relu, leaky_relu, absolute, prelu, piecewise_activation, clamp, heaviside, sign)
