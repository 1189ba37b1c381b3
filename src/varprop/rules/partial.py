"""Functions of several tensors that have no moments in closed form: the Delta method, by their partial derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from varprop.moments import Moments, is_random, mean_of
from varprop.rules import functions
from varprop.rules.arithmetic import expanded
from varprop.rules.derivative import DELTA
from varprop.rules.normal import promote, restore
from varprop.rules.ruleset import Op, Rule, RuleSet, rule

aten = torch.ops.aten


def _arc_tangent(y: Any, x: Any) -> tuple[Any, ...]:
    square = x * x + y * y
    return x / square, -y / square


def _power(x: Any, exponent: Any) -> tuple[Any, ...]:
    base = torch.as_tensor(x)
    return exponent * base ** (exponent - 1), base**exponent * torch.log(base)


def _share(x: Any, y: Any) -> tuple[Any, ...]:
    gate = torch.sigmoid((x - y) * math.log(2))
    return gate, 1 - gate


# ∂f/∂x for each argument x, given the arguments; what belongs to a number is not used.
PARTIAL: dict[Any, Callable[..., tuple[Any, ...]]] = {
    aten.addcdiv.default: lambda x, y, z, value=1: (1.0, value / z, -value * y / (z * z)),
    aten.atan2.default: _arc_tangent,
    aten.copysign.Scalar: lambda x, y: (torch.sign(x) * math.copysign(1, y), 0.0),
    aten.copysign.Tensor: lambda x, y: (torch.copysign(torch.sign(x), x * y), 0.0),
    aten.hypot.default: lambda x, y: (x / torch.hypot(x, y), y / torch.hypot(x, y)),
    aten.logaddexp2.default: _share,
    aten.pow.Scalar: _power,
    aten.pow.Tensor_Tensor: _power,
    aten.xlogy.Scalar_Other: lambda x, y: (math.log(y), 0.0),
    aten.xlogy.Scalar_Self: lambda x, y: (0.0, x / y),
    aten.xlogy.Tensor: lambda x, y: (torch.log(y), x / y),
    aten.special_xlog1py.default: lambda x, y: (torch.log1p(y), x / (1 + y)),
}


def partial_tangent(op: Op) -> Rule:
    """The Delta method as a rule for ``op``."""

    @rule(op, approximation=DELTA)
    def delta(*args: Any, **kwargs: Any) -> Moments:
        """f(μ), Σ (∂f/∂x)² Σx over the random arguments x."""
        raised = [promote(arg, torch.float32) if is_random(arg) else arg for arg in args]
        means = [mean_of(arg) for arg in raised]
        mean = op(*means, **kwargs)
        var: Any = 0.0
        for arg, slope in zip(raised, PARTIAL[op](*means, **kwargs), strict=False):
            if is_random(arg):
                # Where nothing is random the slope does not matter, and may be infinite.
                var = var + torch.where(arg.var > 0, slope * slope * arg.var, 0.0)
        like = next(arg for arg in args if is_random(arg))
        return restore(expanded(mean, var), like=like)

    return delta


ARC_TANGENT = partial_tangent(aten.atan2.default)


@rule(functions.argument, approximation=DELTA, takes_complex=True)
def argument(z: Moments) -> Any:
    """The angle of a + ib, that of (a, b)."""
    return ARC_TANGENT(Moments(z.mean.imag, z.var.imag), Moments(z.mean.real, z.var.real))


PARTIAL_TANGENTS = RuleSet(
    *(partial_tangent(op) for op in PARTIAL if op not in ARC_TANGENT.ops),
    ARC_TANGENT,
    argument,
    name="functions of several tensors",
)
