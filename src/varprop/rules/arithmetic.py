"""Sums and products of moments; both pass constants through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of
from varprop.rules.ruleset import Op, RuleSet, rule, rule_for_each

aten = torch.ops.aten


def expanded(mean: Tensor, var: Tensor) -> Moments:
    """Moments whose variance is broadcast to the shape of the mean."""
    return Moments(mean, var if var.shape == mean.shape else var.expand_as(mean))


def as_moments(x: Any) -> Moments:
    """A constant is random with no variance."""
    return x if is_random(x) else Moments(x, torch.zeros_like(x))


def second_moment(x: Any) -> Any:
    """E[x²]. Folded once where x is a weight."""
    return x.mean * x.mean + x.var if is_random(x) else x * x


@rule(aten.add.Tensor, aten.add.Scalar, approximation=None, takes_complex=True)
def add(x: Any, y: Any, alpha: float = 1) -> Any:
    """z = x + αy. Variances add: Σz = Σx + α² Σy. Exact."""
    mean = torch.add(mean_of(x), mean_of(y), alpha=alpha) if alpha != 1 else mean_of(x) + mean_of(y)
    parts = [x.var] if is_random(x) else []
    if is_random(y):
        parts.append(y.var if alpha == 1 else alpha * alpha * y.var)
    return expanded(mean, sum(parts[1:], parts[0])) if parts else mean


@rule(aten.sub.Tensor, aten.sub.Scalar, approximation=None, takes_complex=True)
def subtract(x: Any, y: Any, alpha: float = 1) -> Any:
    """z = x − αy. Exact."""
    return add(x, y, alpha=-alpha)


@rule(aten.rsub.Scalar, aten.rsub.Tensor, approximation=None, takes_complex=True)
def reverse_subtract(x: Any, y: Any, alpha: float = 1) -> Any:
    """z = y − αx. Exact."""
    return add(y, x, alpha=-alpha)


@rule(aten.neg.default, approximation=None, takes_complex=True)
def negate(x: Moments) -> Moments:
    """y = −x. Exact."""
    return Moments(-x.mean, x.var)


def bilinear(op: Callable[..., Tensor], x: Any, y: Any) -> Any:
    """Any map that is linear in each of two independent arguments: products, matrix products, convolutions.

    μz = op(μx, μy)        Σz = op(Σx, E[y²]) + op(μx², Σy)
    """
    if is_complex(x) or is_complex(y):
        return _complex_bilinear(op, x, y)
    mean = op(mean_of(x), mean_of(y))
    parts = [op(x.var, second_moment(y))] if is_random(x) else []
    if is_random(y):
        parts.append(op(mean_of(x) * mean_of(x), y.var))
    return expanded(mean, sum(parts[1:], parts[0])) if parts else mean


def is_complex(x: Any) -> bool:
    value = mean_of(x)
    return value.is_complex() if isinstance(value, Tensor) else isinstance(value, complex)


def _parts(x: Any) -> tuple[Any, Any]:
    """Real and imaginary part, the latter None if x is real."""
    if not is_complex(x):
        return x, None
    return (Moments(x.mean.real, x.var.real), Moments(x.mean.imag, x.var.imag)) if is_random(x) else (x.real, x.imag)


def _complex_bilinear(op: Callable[..., Tensor], x: Any, y: Any) -> Moments:
    """(a + ib)(c + id) = ac − bd + i(ad + bc), the variance of each part that of independent a, b, c, d."""
    (a, b), (c, d) = _parts(x), _parts(y)

    def var(*pairs: tuple[Any, Any]) -> Tensor:
        terms = [bilinear(op, *pair).var for pair in pairs if pair[0] is not None and pair[1] is not None]
        return sum(terms[1:], terms[0])

    return expanded(op(mean_of(x), mean_of(y)), torch.complex(var((a, c), (b, d)), var((a, d), (b, c))))


@rule(aten.mul.Tensor, aten.mul.Scalar, approximation=None, takes_complex=True)
def multiply(x: Any, y: Any) -> Any:
    """z = x·y: Σz = Σx E[y²] + μx² Σy. Exact."""
    return bilinear(torch.mul, x, y)


def _linearised_divisor(_: Any, y: Any) -> str | None:
    return "the random divisor is linearised, error O(Σy/μy²)" if is_random(y) else None


@rule(
    *(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor),
    approximation=_linearised_divisor,
    takes_complex=True,
)
def divide(x: Any, y: Any) -> Any:
    """z = x/y: a constant divisor is a factor. Σz = (Σx + (μx/μy)² Σy)/μy²"""
    if not is_random(y):
        return multiply(x, 1 / y) if is_complex(y) else Moments(x.mean / y, x.var / (y * y))
    if is_complex(x) or is_complex(y):
        return NotImplemented
    ratio = mean_of(x) / y.mean
    var = ratio * ratio * y.var
    return expanded(ratio, (var + x.var if is_random(x) else var) / (y.mean * y.mean))


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode, approximation="decided at the mean: the variance ends here")
def divide_and_round(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    """⌊x/y⌋ at the means."""
    if rounding_mode is None:
        return NotImplemented
    return torch.div(mean_of(x), mean_of(y), rounding_mode=rounding_mode)


@rule_for_each(
    *(aten.remainder.Scalar, aten.remainder.Tensor, aten.fmod.Scalar, aten.fmod.Tensor),
    approximation="exact while no value crosses a multiple of the divisor",
)
def remainder(op: Op, x: Any, y: Any) -> Any:
    """x − n y at the means' n: the slope is 1."""
    return NotImplemented if is_random(y) or not is_random(x) else expanded(op(x.mean, y), x.var)


@rule(aten.addcmul.default, approximation=None)
def add_product(x: Any, y: Any, z: Any, *, value: float = 1) -> Any:
    """x + value·y·z. Exact."""
    return add(x, multiply(y, z), alpha=value)


@rule(aten.lerp.Scalar, aten.lerp.Tensor, approximation=None)
def interpolate_linearly(x: Any, y: Any, weight: Any) -> Any:
    """z = (1 − w) x + w y: Σz = E[(1 − w)²] Σx + E[w²] Σy + (μx − μy)² Σw. Exact."""
    if not is_random(weight):
        return add(multiply(x, 1 - weight), multiply(y, weight))
    x, y = as_moments(x), as_moments(y)
    step = x.mean - y.mean
    var = second_moment(subtract(1, weight)) * x.var + second_moment(weight) * y.var + step * step * weight.var
    return expanded(x.mean - weight.mean * step, var)


ARITHMETIC = RuleSet(
    *(add, subtract, reverse_subtract, negate, multiply, divide, divide_and_round, remainder),
    *(add_product, interpolate_linearly),
    name="arithmetic",
)
