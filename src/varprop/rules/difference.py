"""Differences of elementwise ops, f(x + δ) − f(x), whose digits do not cancel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from varprop.rules.derivative import BINARY, SELU_ALPHA, SELU_SCALE, UNARY
from varprop.rules.normal import expm1
from varprop.rules.ruleset import Op

aten = torch.ops.aten

# Straight lines between bends.
STRAIGHT = {
    aten.abs.default,
    aten.clamp.default,
    aten.clamp.Tensor,
    aten.clamp_max.default,
    aten.clamp_max.Tensor,
    aten.clamp_min.default,
    aten.clamp_min.Tensor,
    aten.hardshrink.default,
    aten.hardsigmoid.default,
    aten.hardtanh.default,
    aten.leaky_relu.default,
    aten.relu.default,
    aten.relu6.default,
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
    if op in PIECES:
        return PIECES[op](x, step, *args, **kwargs)
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


# Curves that bend: made of steps that do not round.
PIECES: dict[Any, Callable[..., Tensor]] = {
    aten.celu.default: lambda x, step, alpha=1.0: _elu_step(x, step, alpha, 1.0, 1 / alpha),
    aten.elu.default: _elu_step,
    aten.hardswish.default: _hardswish_step,
    aten.selu.default: lambda x, step: _elu_step(x, step, SELU_ALPHA, SELU_SCALE),
}


def differences(body: fx.GraphModule, x: Tensor, step: Tensor, *constants: Tensor) -> Tensor:
    """f(x + δ) − f(x) of a chain of elementwise ops, each given the difference of the one before."""
    values: dict[fx.Node, Any] = {}
    steps: dict[Any, Any] = {}
    inputs = iter((x, *constants))
    for node in body.graph.nodes:
        if node.op == "placeholder":
            values[node], steps[node] = next(inputs), 0 if steps else step
        elif node.op == "output":
            return steps[node.args[0]]
        else:
            args = [values[arg] if isinstance(arg, fx.Node) else arg for arg in node.args]
            moved: list[Any] = [steps[arg] if isinstance(arg, fx.Node) else 0 for arg in node.args]
            values[node] = node.target(*args, **node.kwargs)
            if node.target in UNARY:
                first, *rest = args
                steps[node] = difference(node.target, first, moved[0], *rest, **node.kwargs)
            else:
                steps[node] = STEPS[node.target](*moved[:2], *args, **node.kwargs)
    raise ValueError("a chain without an output")
