"""First derivatives of elementwise ops and of chains of them, and differences f(x + δ) − f(x) that do not cancel."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from varprop.rules import functions
from varprop.rules.normal import expm1
from varprop.rules.ruleset import Op

aten = torch.ops.aten

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    return aten.elu_backward(torch.ones_like(x), alpha, scale, input_scale, False, x)


def _mish(x: Tensor) -> Tensor:
    gate = torch.tanh(torch.nn.functional.softplus(x))  # mish_backward has no derivative of its own
    return gate + x * torch.sigmoid(x) * (1 - gate * gate)


def _quick_gelu(x: Tensor) -> Tensor:
    gate = torch.sigmoid(1.702 * x)
    return gate * (1 + 1.702 * x * torch.sigmoid(-1.702 * x))


def _power(x: Tensor, exponent: float) -> Tensor:
    return exponent * x ** (exponent - 1) if exponent else torch.zeros_like(x)


def _inside(x: Tensor, lower: Any, upper: Any) -> Tensor:
    inside = torch.ones_like(x)
    if lower is not None:
        inside = inside * (x >= lower)
    return inside if upper is None else inside * (x <= upper)


# The bounds of ops that clamp, given their further arguments.
BOUNDS: dict[Any, Callable[..., tuple[Any, Any]]] = {
    **dict.fromkeys((aten.clamp.default, aten.clamp.Tensor), lambda min=None, max=None: (min, max)),
    **dict.fromkeys((aten.clamp_max.default, aten.clamp_max.Tensor), lambda max: (None, max)),
    **dict.fromkeys((aten.clamp_min.default, aten.clamp_min.Tensor), lambda min: (min, None)),
    aten.hardtanh.default: lambda min_val=-1, max_val=1: (min_val, max_val),
    aten.relu6.default: lambda: (0.0, 6.0),
}


def _clamp(op: Op, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _inside(x, *BOUNDS[op](*args, **kwargs))


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
    **{op: functools.partial(_clamp, op) for op in BOUNDS},
    aten.abs.default: torch.sign,
    aten.acos.default: lambda x: -torch.rsqrt(1 - x * x),
    aten.acosh.default: lambda x: torch.rsqrt((x * x - 1).abs()),
    aten.asin.default: lambda x: torch.rsqrt(1 - x * x),
    aten.asinh.default: lambda x: torch.rsqrt(1 + x * x),
    aten.atan.default: lambda x: 1 / (1 + x * x),
    aten.atanh.default: lambda x: 1 / (1 - x * x),
    aten.celu.default: lambda x, alpha=1.0: _elu(x, alpha, 1.0, 1.0 / alpha),
    aten.cos.default: lambda x: -torch.sin(x),
    aten.cosh.default: torch.sinh,
    aten.deg2rad.default: lambda x: torch.full_like(x, math.pi / 180),
    aten.digamma.default: lambda x: torch.polygamma(1, x),
    aten.elu.default: _elu,
    aten.erf.default: lambda x: 2 / math.sqrt(math.pi) * torch.exp(-x * x),
    aten.erfc.default: lambda x: -2 / math.sqrt(math.pi) * torch.exp(-x * x),
    aten.erfinv.default: lambda x: math.sqrt(math.pi) / 2 * torch.exp(torch.erfinv(x).square()),
    aten.exp.default: torch.exp,
    aten.exp2.default: lambda x: math.log(2) * torch.exp2(x),
    aten.expm1.default: torch.exp,
    aten.frac.default: torch.ones_like,
    aten.gelu.default: lambda x, *, approximate="none": aten.gelu_backward(
        torch.ones_like(x), x, approximate=approximate
    ),
    aten.hardshrink.default: lambda x, lambd=0.5: (x.abs() > lambd).to(x.dtype),
    aten.hardsigmoid.default: lambda x: _inside(x, -3, 3) / 6,
    aten.hardswish.default: lambda x: aten.hardswish_backward(torch.ones_like(x), x),
    aten.leaky_relu.default: lambda x, negative_slope=0.01: torch.where(x > 0, 1.0, negative_slope).to(x.dtype),
    aten.lgamma.default: torch.digamma,
    aten.log.default: torch.reciprocal,
    aten.log10.default: lambda x: 1 / (math.log(10) * x),
    aten.log2.default: lambda x: 1 / (math.log(2) * x),
    aten.logit.default: _logit,
    aten.log1p.default: lambda x: 1 / (1 + x),
    aten.log_sigmoid.default: lambda x: torch.sigmoid(-x),
    aten.mish.default: _mish,
    aten.neg.default: lambda x: -torch.ones_like(x),
    aten.pow.Tensor_Scalar: _power,
    aten.rad2deg.default: lambda x: torch.full_like(x, 180 / math.pi),
    aten.reciprocal.default: lambda x: -1 / (x * x),
    aten.relu.default: lambda x: (x > 0).to(x.dtype),
    aten.rsqrt.default: lambda x: -0.5 * x.rsqrt() / x,
    aten.selu.default: lambda x: _elu(x, SELU_ALPHA, SELU_SCALE),
    aten.sigmoid.default: lambda x: torch.sigmoid(x) * torch.sigmoid(-x),
    aten.silu.default: lambda x: torch.sigmoid(x) * (1 + x * torch.sigmoid(-x)),
    aten.sin.default: torch.cos,
    aten.sinh.default: torch.cosh,
    aten.sinc.default: _sinc,
    aten.softshrink.default: lambda x, lambd=0.5: (x.abs() > lambd).to(x.dtype),
    aten.softplus.default: lambda x, beta=1.0, threshold=20.0: aten.softplus_backward(
        torch.ones_like(x), x, beta, threshold
    ),
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

# Straight lines between bends.
STRAIGHT = BOUNDS.keys() | {
    aten.abs.default,
    aten.hardshrink.default,
    aten.hardsigmoid.default,
    aten.leaky_relu.default,
    aten.relu.default,
    aten.softshrink.default,
    aten.threshold.default,
}
# Functions that look the same at every scale, down to 0.
SCALE_FREE = {
    aten.log.default,
    aten.log10.default,
    aten.log2.default,
    aten.pow.Tensor_Scalar,
    aten.reciprocal.default,
    aten.rsqrt.default,
    aten.sqrt.default,
}
# Those whose bends grow with the distance from 0.
FLATTENING = {aten.asinh.default, aten.atan.default}
GAUSS = (0.5 - math.sqrt(1 / 12), 0.5 + math.sqrt(1 / 12))

# f(x + dx, y + dy) − f(x, y), with the op's own arguments; that of affine ops is their derivative.
STEPS: dict[Any, Callable[..., Any]] = BINARY | {
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), lambda dx, dy, x, y: dx * y + x * dy + dx * dy),
    **dict.fromkeys(
        (aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor), lambda dx, dy, x, y: (dx - x / y * dy) / (y + dy)
    ),
}


def difference(op: Op, x: Tensor, step: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """f(x + δ) − f(x) of an elementwise op. Values that nearly agree lose their digits, so a small δ is multiplied by
    the slope between: of two points (Gauss), which is right to the order δ⁴, 1e-7 where it is used.
    """
    if op in KINKED:
        return KINKED[op](x, step, *args, **kwargs)
    slope, here = UNARY[op], op(x, *args, **kwargs)
    there = op(x + step, *args, **kwargs) - here
    if op in STRAIGHT:
        # Within the rounding of the values it is the line at x, which does not round; beyond, there is a bend between.
        line = slope(x, *args, **kwargs)
        rounding = 4 * torch.finfo(there.dtype).eps * (here.abs() + line.abs() * (x.abs() + step.abs()))
        return torch.where((line * step - there).abs() <= rounding, line * step, there)
    away = x.abs() if op in SCALE_FREE else x.abs().clamp(min=1)
    near = step.abs() < 0.1 * (away if op in SCALE_FREE | FLATTENING else away**0.2)
    small = torch.where(near, step, 0.0)
    slopes = sum(slope(x + place * small, *args, **kwargs) for place in GAUSS)
    return torch.where(near, 0.5 * small * slopes, there)


def _hardswish_step(x: Tensor, step: Tensor) -> Tensor:
    return step * aten.hardsigmoid.default(x) + (x + step) * difference(aten.hardsigmoid.default, x, step)


def _elu_step(x: Tensor, step: Tensor, alpha: float = 1.0, scale: float = 1.0, rate: float = 1.0) -> Tensor:
    above = difference(aten.relu.default, x, step)
    return scale * (above + alpha * torch.exp(rate * x.clamp(max=0)) * expm1(rate * (step - above)))


# Curves with a kink: made of steps that do not round.
KINKED: dict[Any, Callable[..., Tensor]] = {
    aten.celu.default: lambda x, step, alpha=1.0: _elu_step(x, step, alpha, 1.0, 1 / alpha),
    aten.elu.default: _elu_step,
    aten.hardswish.default: _hardswish_step,
    aten.selu.default: lambda x, step: _elu_step(x, step, SELU_ALPHA, SELU_SCALE),
}


def is_affine(body: fx.GraphModule) -> bool:
    """Is a chain affine in its first input?"""
    random: set[Any] = set()
    for node in body.graph.nodes:
        if node.op == "placeholder" and not random:
            random.add(node)
        elif node.op == "call_function":
            operands = [arg in random for arg in node.args]
            is_product = BINARY.get(node.target) is _product and all(operands)
            is_divisor = BINARY.get(node.target) is _quotient and operands[1]
            if node.target not in AFFINE or is_product or is_divisor:
                return False
            random.update([node] if any(operands) else [])
    return True


def differentiate(body: fx.GraphModule, x: Tensor, *constants: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and f'(x) of a chain of elementwise ops."""

    def slope(op: Op, dx: Any, *args: Any, **kwargs: Any) -> Any:
        return UNARY[op](*args, **kwargs) * dx

    return _accumulate(body, (x, *constants), torch.ones_like(x), slope, BINARY)


def differences(body: fx.GraphModule, x: Tensor, step: Tensor, *constants: Tensor) -> Tensor:
    """f(x + δ) − f(x) of a chain of elementwise ops, each given the difference of the one before."""

    def rise(op: Op, dx: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        return difference(op, x, dx, *args, **kwargs)

    return _accumulate(body, (x, *constants), step, rise, STEPS)[1]


def _accumulate(
    body: fx.GraphModule,
    inputs: tuple[Tensor, ...],
    change: Tensor,
    unary: Callable[..., Any],
    binary: dict[Any, Callable[..., Any]],
) -> tuple[Tensor, Tensor]:
    """A chain's value and, op by op, what a change of its first input does to it: forward accumulation."""
    values: dict[fx.Node, Any] = {}
    changes: dict[fx.Node, Any] = {}
    given = iter(inputs)
    for node in body.graph.nodes:
        if node.op == "placeholder":
            values[node], changes[node] = next(given), 0 if changes else change
        elif node.op == "output":
            result = node.args[0]
        else:
            args = [values[arg] if isinstance(arg, fx.Node) else arg for arg in node.args]
            moved: list[Any] = [changes[arg] if isinstance(arg, fx.Node) else 0 for arg in node.args]
            values[node] = node.target(*args, **node.kwargs)
            if node.target in UNARY:
                changes[node] = unary(node.target, moved[0], *args, **node.kwargs)
            else:
                changes[node] = binary[node.target](*moved[:2], *args, **node.kwargs)
    return values[result], changes[result]
