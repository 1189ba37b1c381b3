"""First derivatives of elementwise ops: what the Delta method and chains of ops need."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from varprop.moments import Moments
from varprop.rules import functions
from varprop.rules.ruleset import Op, Rule, rule

aten = torch.ops.aten

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _ones(x: Tensor) -> Tensor:
    return torch.ones_like(x)


def _celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return aten.elu_backward(_ones(x), alpha, 1.0, 1.0 / alpha, False, x)


def _mish(x: Tensor) -> Tensor:
    gate = torch.tanh(torch.nn.functional.softplus(x))  # mish_backward has no derivative of its own
    return gate + x * torch.sigmoid(x) * (1 - gate * gate)


def _quick_gelu(x: Tensor) -> Tensor:
    gate = torch.sigmoid(1.702 * x)
    return gate * (1 + 1.702 * x * torch.sigmoid(-1.702 * x))


def _power(x: Tensor, exponent: float) -> Tensor:
    return exponent * x ** (exponent - 1) if exponent else torch.zeros_like(x)


def _clamp(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    inside = torch.ones_like(x)
    if min is not None:
        inside = inside * (x >= min)
    return inside if max is None else inside * (x <= max)


def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    slope = 1 / (x * (1 - x))
    return slope if eps is None else slope * ((x >= eps) & (x <= 1 - eps))


def _sinc(x: Tensor) -> Tensor:
    near, square = x.abs() < 0.1, (math.pi * x).square()  # where the terms cancel
    away = torch.where(near, 1.0, x)
    series = -(math.pi**2) / 3 * x * (1 - square / 10 * (1 - square / 28))
    return torch.where(near, series, (torch.cos(math.pi * away) - torch.sinc(away)) / away)


# f'(x), with the op's own further arguments.
UNARY: dict[Any, Callable[..., Tensor]] = {
    aten.abs.default: torch.sign,
    aten.acos.default: lambda x: -torch.rsqrt(1 - x * x),
    aten.acosh.default: lambda x: torch.rsqrt((x * x - 1).abs()),
    aten.asin.default: lambda x: torch.rsqrt(1 - x * x),
    aten.asinh.default: lambda x: torch.rsqrt(1 + x * x),
    aten.atan.default: lambda x: 1 / (1 + x * x),
    aten.atanh.default: lambda x: 1 / (1 - x * x),
    aten.celu.default: _celu,
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.clamp_max.Tensor: lambda x, max: _clamp(x, None, max),
    aten.clamp_min.Tensor: _clamp,
    aten.clamp_max.default: lambda x, max: _clamp(x, None, max),
    aten.clamp_min.default: _clamp,
    aten.cos.default: lambda x: -torch.sin(x),
    aten.cosh.default: torch.sinh,
    aten.deg2rad.default: lambda x: torch.full_like(x, math.pi / 180),
    aten.digamma.default: lambda x: torch.polygamma(1, x),
    aten.elu.default: lambda x, alpha=1.0, scale=1.0, input_scale=1.0: aten.elu_backward(
        _ones(x), alpha, scale, input_scale, False, x
    ),
    aten.erf.default: lambda x: 2 / math.sqrt(math.pi) * torch.exp(-x * x),
    aten.erfc.default: lambda x: -2 / math.sqrt(math.pi) * torch.exp(-x * x),
    aten.erfinv.default: lambda x: math.sqrt(math.pi) / 2 * torch.exp(torch.erfinv(x).square()),
    aten.exp.default: torch.exp,
    aten.exp2.default: lambda x: math.log(2) * torch.exp2(x),
    aten.expm1.default: torch.exp,
    aten.frac.default: lambda x: _ones(x),
    aten.gelu.default: lambda x, *, approximate="none": aten.gelu_backward(_ones(x), x, approximate=approximate),
    aten.hardshrink.default: lambda x, lambd=0.5: (x.abs() > lambd).to(x.dtype),
    aten.hardsigmoid.default: lambda x: _clamp(x, -3, 3) / 6,
    aten.hardswish.default: lambda x: aten.hardswish_backward(_ones(x), x),
    aten.hardtanh.default: lambda x, min_val=-1.0, max_val=1.0: _clamp(x, min_val, max_val),
    aten.leaky_relu.default: lambda x, negative_slope=0.01: torch.where(x > 0, 1.0, negative_slope).to(x.dtype),
    aten.lgamma.default: torch.digamma,
    aten.log.default: torch.reciprocal,
    aten.log10.default: lambda x: 1 / (math.log(10) * x),
    aten.log2.default: lambda x: 1 / (math.log(2) * x),
    aten.logit.default: lambda x, eps=None: _logit(x, eps),
    aten.log1p.default: lambda x: 1 / (1 + x),
    aten.log_sigmoid.default: lambda x: torch.sigmoid(-x),
    aten.mish.default: _mish,
    aten.neg.default: lambda x: -_ones(x),
    aten.pow.Tensor_Scalar: _power,
    aten.rad2deg.default: lambda x: torch.full_like(x, 180 / math.pi),
    aten.reciprocal.default: lambda x: -1 / (x * x),
    aten.relu.default: lambda x: (x > 0).to(x.dtype),
    aten.relu6.default: lambda x: _clamp(x, 0, 6),
    aten.rsqrt.default: lambda x: -0.5 * x.rsqrt() / x,
    aten.selu.default: lambda x: aten.elu_backward(_ones(x), SELU_ALPHA, SELU_SCALE, 1.0, False, x),
    aten.sigmoid.default: lambda x: torch.sigmoid(x) * torch.sigmoid(-x),
    aten.silu.default: lambda x: torch.sigmoid(x) * (1 + x * torch.sigmoid(-x)),
    aten.sin.default: torch.cos,
    aten.sinh.default: torch.cosh,
    aten.sinc.default: _sinc,
    aten.softshrink.default: lambda x, lambd=0.5: (x.abs() > lambd).to(x.dtype),
    aten.softplus.default: lambda x, beta=1.0, threshold=20.0: aten.softplus_backward(_ones(x), x, beta, threshold),
    aten.sqrt.default: lambda x: 0.5 * x.rsqrt(),
    aten.square.default: lambda x: 2 * x,
    aten.tan.default: lambda x: 1 + torch.tan(x) ** 2,
    aten.tanh.default: lambda x: 1 - torch.tanh(x) ** 2,
    aten.threshold.default: lambda x, threshold, value: (x > threshold).to(x.dtype),
    functions.quick_gelu: _quick_gelu,
}


def _product(dx: Any, dy: Any, x: Any, y: Any) -> Any:
    return dx * y + x * dy


def _quotient(dx: Any, dy: Any, x: Any, y: Any) -> Any:
    return dx / y - x * dy / (y * y)


# d f(x, y) given dx and dy, with the op's own arguments.
BINARY: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: lambda dx, dy, x, y, alpha=1: dx + alpha * dy,
    aten.add.Scalar: lambda dx, dy, x, y, alpha=1: dx,
    aten.sub.Tensor: lambda dx, dy, x, y, alpha=1: dx - alpha * dy,
    aten.sub.Scalar: lambda dx, dy, x, y, alpha=1: dx,
    aten.rsub.Scalar: lambda dx, dy, x, y, alpha=1: -alpha * dx,
    aten.mul.Tensor: _product,
    aten.mul.Scalar: _product,
    aten.div.Tensor: _quotient,
    aten.div.Scalar: _quotient,
    aten.true_divide.Tensor: _quotient,
}

DERIVATIVES = UNARY | BINARY
AFFINE = BINARY.keys() | {aten.neg.default}


DELTA = "the Delta method, first order in the deviation"


def tangent(op: Op, *, scaled: bool) -> Rule:
    """The Delta method as a rule for ``op``."""

    @rule(op, approximation=DELTA, scaled=scaled)
    def delta(x: Moments, *args: Any, **kwargs: Any) -> Moments:
        """f(μ), f'(μ)² Σ."""
        # Where nothing is random, the slope does not matter and may be infinite: that of √x at a masked 0.
        slope = UNARY[op](torch.where(x.var > 0, x.mean, 0.5), *args, **kwargs)
        return Moments(op(x.mean, *args, **kwargs), slope * slope * x.var)

    return delta


def degree(body: fx.GraphModule) -> float:
    """The degree of a chain as a polynomial of its first input; infinity if it is none."""
    degrees: dict[Any, float] = {}
    for node in body.graph.nodes:
        if node.op == "placeholder":
            degrees[node] = 0 if degrees else 1
        elif node.op == "output":
            return degrees[node.args[0]]
        else:
            orders = [degrees.get(arg, 0) if isinstance(arg, fx.Node) else 0 for arg in node.args]
            products = (aten.mul.Tensor, aten.mul.Scalar)
            divisor = orders[1] if len(orders) > 1 and "div" in str(node.target) else 0
            known = node.target in AFFINE and not divisor
            degrees[node] = (sum(orders) if node.target in products else max(orders)) if known else math.inf
    return math.inf


def differentiate(body: fx.GraphModule, x: Tensor, *constants: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and f'(x) of a chain of elementwise ops, by forward accumulation."""
    values: dict[fx.Node, Any] = {}
    slopes: dict[fx.Node, Any] = {}
    inputs = iter((x, *constants))
    for node in body.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
            slopes[node] = _ones(x) if not slopes else 0
        elif node.op == "output":
            result = node.args[0]
        else:
            args = [values[arg] if isinstance(arg, fx.Node) else arg for arg in node.args]
            tangents = [slopes[arg] if isinstance(arg, fx.Node) else 0 for arg in node.args]
            values[node] = node.target(*args, **node.kwargs)
            if node.target in UNARY:
                slopes[node] = UNARY[node.target](*args, **node.kwargs) * tangents[0]
            else:
                slopes[node] = BINARY[node.target](*tangents[:2], *args, **node.kwargs)
    return values[result], slopes[result]
