"""The Delta method: functions linearised at the mean, of one tensor or of several."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from varprop.moments import Moments, is_random, mean_of
from varprop.rules import functions
from varprop.rules.arithmetic import expanded
from varprop.rules.derivative import UNARY, differentiate
from varprop.rules.normal import in_float32
from varprop.rules.ruleset import Op, Rule, RuleSet, rule, rule_for_each

aten = torch.ops.aten

DELTA = "the Delta method, first order in the deviation"


def tangent(op: Op, *, scaled: bool = False) -> Rule:
    """The Delta method as a rule for a function of one tensor."""
    return rule(op, approximation=DELTA, scaled=scaled)(functools.partial(delta, op))


def delta(op: Op, x: Moments, *args: Any, **kwargs: Any) -> Moments:
    """f(μ), f'(μ)² Σ."""
    # Where nothing is random, the slope does not matter and may be infinite: that of √x at a masked 0.
    slope = UNARY[op](torch.where(x.var > 0, x.mean, 0.5), *args, **kwargs)
    return Moments(op(x.mean, *args, **kwargs), slope * slope * x.var)


def _arc_tangent(y: Any, x: Any) -> tuple[Any, ...]:
    square = x * x + y * y
    return x / square, -y / square


def _power(x: Any, exponent: Any) -> tuple[Any, ...]:
    base = torch.as_tensor(x)
    return exponent * base ** (exponent - 1), base**exponent * torch.log(base)


def _shares(gap: Any) -> tuple[Any, ...]:
    """Of eˣ and of eʸ in their sum, given x − y; −∞ in both is a mask."""
    return torch.sigmoid(gap).nan_to_num(0.0), torch.sigmoid(-gap).nan_to_num(0.0)


def delta_of_chain(body: fx.GraphModule, x: Moments, *constants: Tensor) -> Moments:
    """f(μ), f'(μ)² Σ of a chain of ops."""
    value, slope = differentiate(body, x.mean, *constants)
    return expanded(value, slope * slope * x.var)


# ∂f/∂x for each argument x, given the arguments; what belongs to a number is not used.
PARTIAL: dict[Any, Callable[..., tuple[Any, ...]]] = {
    aten.addcdiv.default: lambda x, y, z, value=1: (1.0, value / z, -value * y / (z * z)),
    aten.atan2.default: _arc_tangent,
    aten.copysign.Scalar: lambda x, y: (torch.sign(x) * math.copysign(1, y), 0.0),
    aten.copysign.Tensor: lambda x, y: (torch.copysign(torch.sign(x), x * y), 0.0),
    aten.hypot.default: lambda x, y: (x / torch.hypot(x, y), y / torch.hypot(x, y)),
    aten.logaddexp.default: lambda x, y: _shares(x - y),
    aten.logaddexp2.default: lambda x, y: _shares((x - y) * math.log(2)),
    aten.pow.Scalar: _power,
    aten.pow.Tensor_Tensor: _power,
    aten.xlogy.Scalar_Other: lambda x, y: (math.log(y), 0.0),
    aten.xlogy.Scalar_Self: lambda x, y: (0.0, x / y),
    aten.xlogy.Tensor: lambda x, y: (torch.log(y), x / y),
    aten.special_xlog1py.default: lambda x, y: (torch.log1p(y), x / (1 + y)),
}


@rule_for_each(*PARTIAL, approximation=DELTA)
@in_float32
def delta_of_several(op: Op, *args: Any, **kwargs: Any) -> Moments:
    """f(μ), Σ (∂f/∂x)² Σx over the random arguments x."""
    means = [mean_of(arg) for arg in args]
    var: Any = 0.0
    for arg, slope in zip(args, PARTIAL[op](*means, **kwargs), strict=False):
        if is_random(arg):
            # Where nothing is random the slope does not matter, and may be infinite.
            var = var + torch.where(arg.var > 0, slope * slope * arg.var, 0.0)
    return expanded(op(*means, **kwargs), var)


@rule(functions.argument, approximation=DELTA, takes_complex=True)
def argument(z: Moments) -> Any:
    """The angle of a + ib, that of (a, b)."""
    return delta_of_several[aten.atan2.default](Moments(z.mean.imag, z.var.imag), Moments(z.mean.real, z.var.real))


SEVERAL = RuleSet(delta_of_several, argument, name="linearised in several arguments")
