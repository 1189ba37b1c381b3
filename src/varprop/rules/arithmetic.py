"""Sums and products of moments; both pass constants through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of
from varprop.rules.ruleset import Rule, RuleSet, rule

aten = torch.ops.aten


def moments(mean: Tensor, var: Tensor) -> Moments:
    """Moments whose variance is broadcast to the shape of the mean."""
    return Moments(mean, var if var.shape == mean.shape else var.expand_as(mean))


def as_moments(x: Any) -> Moments:
    """A constant is random with no variance."""
    return x if is_random(x) else Moments(x, torch.zeros_like(x))


def second_moment(x: Any) -> Any:
    """E[x²]. Folded once where x is a weight."""
    return x.mean * x.mean + x.var if is_random(x) else x * x


@rule(aten.add.Tensor, aten.add.Scalar)
def add(x: Any, y: Any, alpha: float = 1) -> Any:
    """y = x + αy. Variances add: Σ = Σx + α² Σy.

    Exact. (For independent operands; coverage says where they share a source.)
    """
    mean = torch.add(mean_of(x), mean_of(y), alpha=alpha) if alpha != 1 else mean_of(x) + mean_of(y)
    parts = [x.var] if is_random(x) else []
    if is_random(y):
        parts.append(y.var if alpha == 1 else alpha * alpha * y.var)
    return moments(mean, sum(parts[1:], parts[0])) if parts else mean


@rule(aten.sub.Tensor, aten.sub.Scalar)
def subtract(x: Any, y: Any, alpha: float = 1) -> Any:
    """y = x − αy. Exact. (For independent operands; coverage says where they share a source.)"""
    return add(x, y, alpha=-alpha)


@rule(aten.rsub.Scalar, aten.rsub.Tensor)
def reverse_subtract(x: Any, y: Any, alpha: float = 1) -> Any:
    """y = y − αx. Exact. (For independent operands; coverage says where they share a source.)"""
    return add(y, x, alpha=-alpha)


@rule(aten.neg.default)
def negate(x: Moments) -> Moments:
    """y = −x. Exact."""
    return Moments(-x.mean, x.var)


def bilinear(op: Callable[..., Tensor], x: Any, y: Any) -> Any:
    """Any map that is linear in each of two independent arguments: products, matrix products, convolutions.

    μ = op(μx, μy)        Σ = op(Σx, E[y²]) + op(μx², Σy)        (paper, eq. method_linear)
    """
    mean = op(mean_of(x), mean_of(y))
    parts = [op(x.var, second_moment(y))] if is_random(x) else []
    if is_random(y):
        parts.append(op(mean_of(x) * mean_of(x), y.var))
    return moments(mean, sum(parts[1:], parts[0])) if parts else mean


@rule(aten.mul.Tensor, aten.mul.Scalar)
def multiply(x: Any, y: Any) -> Any:
    """y = x·y: Σ = Σx E[y²] + μx² Σy.

    Exact. (For independent operands; coverage says where they share a source.)
    """
    return bilinear(torch.mul, x, y)


@rule(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def divide(x: Any, y: Any) -> Any:
    """y = x/y: a constant divisor is a factor. Σ = (Σx + (μx/μy)² Σy)/μy²

    Approximation: a random divisor is linearised, error O(Σy/μy²).
    """
    if not is_random(y):
        return Moments(x.mean / y, x.var / (y * y))
    ratio = mean_of(x) / y.mean
    var = ratio * ratio * y.var
    return moments(ratio, (var + x.var if is_random(x) else var) / (y.mean * y.mean))


@rule(aten.addcmul.default)
def add_product(x: Any, y: Any, z: Any, *, value: float = 1) -> Any:
    """y = x + value·y·z. Exact. (For independent operands; coverage says where they share a source.)"""
    return add(x, multiply(y, z), alpha=value)


@rule(aten.lerp.Scalar)
def interpolate_linearly(x: Any, y: Any, weight: float) -> Any:
    """y = (1 − w) x + w y. Exact. (For independent operands; coverage says where they share a source.)"""
    return add(multiply(x, 1 - weight), multiply(y, weight))


ARITHMETIC: RuleSet = RuleSet(
    add, subtract, reverse_subtract, negate, multiply, divide, add_product, interpolate_linearly, name="arithmetic"
)
__all__ = ["ARITHMETIC", "Rule", "add", "as_moments", "bilinear", "moments", "multiply", "second_moment"]
