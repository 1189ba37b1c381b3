"""Streamlining's rules: every non-linear op is replaced by its tangent at the mean, so means never move."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from varprop.moments import Moments, is_random, mean_of
from varprop.rules import activation
from varprop.rules import functions as ops
from varprop.rules.arithmetic import as_moments, moments, multiply, negate
from varprop.rules.derivative import UNARY, differentiate, tangent
from varprop.rules.normalization import norms
from varprop.rules.reduction import dims_of
from varprop.rules.ruleset import Op, Rule, RuleSet, rule

aten = torch.ops.aten


@rule(ops.elementwise, scaled=True)
def chain(body: fx.GraphModule, x: Moments, *constants: Tensor) -> Moments:
    """f(μ), f'(μ)² Σ of a chain of ops. Approximation: the Delta method, first order in the deviation."""
    value, slope = differentiate(body, x.mean, *constants)
    return moments(value, slope * slope * x.var)


@rule(aten.glu.default, scaled=True)
def glu(x: Moments, dim: int = -1) -> Moments:
    """y = a σ(b), a and b the halves of x. Approximation: σ by the Delta method, first order in the deviation."""
    half = x.mean.shape[dim] // 2
    values, gates = (Moments(*(part.narrow(dim, start, half) for part in x)) for start in (0, half))
    return multiply(values, tangent(aten.sigmoid.default, UNARY[aten.sigmoid.default], scaled=True)(gates))


def _quick_gelu_slope(x: Tensor) -> Tensor:
    gate = torch.sigmoid(1.702 * x)
    return gate * (1 + 1.702 * x * torch.sigmoid(-1.702 * x))


@rule(aten.prelu.default, scaled=True)
def prelu(x: Any, weight: Any) -> Moments:
    """x⁺ − w x⁻ at the means. Approximation: the Delta method, first order in the deviations of x and w."""
    mean, slope = mean_of(x), mean_of(weight)
    shape = (-1, *[1] * (mean.ndim - 2)) if mean.ndim > 1 else slope.shape
    bend = torch.where(mean > 0, 1.0, slope.reshape(shape)).to(mean.dtype)
    var = bend * bend * x.var if is_random(x) else torch.zeros_like(mean)
    if is_random(weight):
        var = var + weight.var.reshape(shape) * mean.clamp(max=0).square()
    return Moments(aten.prelu.default(mean, slope), var)


def _step(op: Op) -> Rule:
    @rule(op, scaled=True)
    def step(x: Moments, *args: Any) -> Moments:
        """f(μ), whose slope is 0. Approximation: the Delta method, first order in the deviation."""
        return Moments(op(x.mean.detach(), *args), torch.zeros_like(x.var))  # torch has no derivative of heaviside

    return step


SPECIAL = RuleSet(
    chain,
    glu,
    prelu,
    tangent(ops.quick_gelu, _quick_gelu_slope, scaled=True),
    *map(_step, (aten.heaviside.default, aten.sign.default)),
)

ACTIVATION = RuleSet(
    SPECIAL,
    *(tangent(op, UNARY[op], scaled=rule.scaled) for op, rule in activation.ACTIVATION.items() if op not in SPECIAL),
    name="linearised activations",
)

NORMALIZATION = norms(
    lambda x: x.mean * x.mean,
    "Approximation: the statistic is frozen at its value for the mean, so the norm's mean is the mean network's.",
    name="linearised normalization",
)


@rule(aten.maximum.default, aten.max.other)
def maximum(x: Any, y: Any) -> Moments:
    """max(μx, μy) with the variance of the larger. Approximation: which is larger is decided at the mean."""
    x, y = as_moments(x), as_moments(y)
    return Moments(torch.maximum(x.mean, y.mean), torch.where(x.mean >= y.mean, x.var, y.var))


@rule(aten.minimum.default, aten.min.other)
def minimum(x: Any, y: Any) -> Moments:
    """min(μx, μy) with the variance of the smaller. Approximation: which is smaller is decided at the mean."""
    return negate(maximum(*(negate(part) if is_random(part) else -part for part in (x, y))))


@rule(aten.max.dim)
def largest_with_index(x: Moments, dim: int, keepdim: bool = False) -> tuple[Moments, Tensor]:
    """The largest mean along a dim, with its variance. Approximation: which is largest is decided at the mean."""
    values, indices = x.mean.max(dim, True)
    chosen = Moments(values, x.var.gather(dim, indices))
    if keepdim:
        return chosen, indices
    return Moments(*(part.squeeze(dim) for part in chosen)), indices.squeeze(dim)


@rule(aten.min.dim)
def smallest_with_index(x: Moments, dim: int, keepdim: bool = False) -> tuple[Moments, Tensor]:
    """The smallest mean along a dim, with its variance. Approximation: which is smallest is decided at the mean."""
    largest_negative, indices = largest_with_index(negate(x), dim, keepdim)
    return negate(largest_negative), indices


@rule(aten.amax.default)
def largest(x: Moments, dim: Any = (), keepdim: bool = False) -> Moments:
    """The largest mean over dims, with its variance. Approximation: which is largest is decided at the mean."""
    for d in dims_of(x, dim):
        x = largest_with_index(x, d, keepdim)[0]
    return x


@rule(aten.amin.default)
def smallest(x: Moments, dim: Any = (), keepdim: bool = False) -> Moments:
    """The smallest mean over dims, with its variance. Approximation: which is smallest is decided at the mean."""
    return negate(largest(negate(x), dim, keepdim))


@rule(aten.max.default)
def largest_of_all(x: Moments) -> Moments:
    """The largest mean of all, with its variance. Approximation: which is largest is decided at the mean."""
    return largest(x)


MAXIMA = RuleSet(
    maximum,
    minimum,
    largest,
    smallest,
    largest_of_all,
    largest_with_index,
    smallest_with_index,
    name="linearised maxima",
)
