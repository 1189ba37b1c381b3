"""How each op of a pointwise graph is written in Triton."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

_ROOT, _CUBE = math.sqrt(2 / math.pi), 0.044715  # of GELU by tanh


def _clamp(x: str, low: Any = None, high: Any = None) -> str:
    x = x if low is None else f"tl.maximum({x}, {low})"
    return x if high is None else f"tl.minimum({x}, {high})"


def _power(x: str, exponent: Any) -> str:
    if exponent not in (0, 1, 2, 3, 4):
        raise KeyError(exponent)
    return " * ".join([x] * int(exponent)) or "1.0"


def _softplus(x: str, beta: Any = 1.0, threshold: Any = 20.0) -> str:
    inner = f"tl.exp(tl.minimum({x} * {beta}, {threshold}))"
    return f"tl.where({x} * {beta} > {threshold}, {x}, {_log1p(inner)} / {beta})"


def _log1p(x: str) -> str:
    """Log(u) with u = 1 + x, and what rounding took from u."""
    return f"(tl.log(1.0 + {x}) + ({x} - ((1.0 + {x}) - 1.0)) / (1.0 + {x}))"


def _tanh(x: str) -> str:
    """σ loses small x, of which three terms of the series leave 1e-8."""
    series = f"{x} * (1.0 - {x} * {x} * (1.0 / 3.0 - {x} * {x} * (2.0 / 15.0)))"
    return f"tl.where(tl.abs({x}) < 0.08, {series}, 2.0 * tl.sigmoid(2.0 * {x}) - 1.0)"


def _gelu(x: str, *, approximate: str = "none") -> str:
    if approximate == "tanh":
        return f"{x} * {_tanh_cdf(x)}"
    return f"{x} * {_normal_cdf(x)}"


def _gelu_backward(g: str, x: str, *, approximate: str = "none") -> str:
    if approximate == "tanh":
        slope = f"(2.0 * {_ROOT} * (1.0 + {3 * _CUBE} * {x} * {x}))"
        return f"{g} * ({_tanh_cdf(x)} + {x} * {slope} * {_tanh_cdf(x)} * (1.0 - {_tanh_cdf(x)}))"
    return f"{g} * ({_normal_cdf(x)} + {x} * {1 / math.sqrt(2 * math.pi)} * tl.exp(-0.5 * {x} * {x}))"


def _normal_cdf(x: str) -> str:
    return f"(0.5 * (1.0 + tl.erf({x} * {math.sqrt(0.5)})))"


def _tanh_cdf(x: str) -> str:
    """(1 + tanh(u)) / 2 = σ(2u)."""
    return f"tl.sigmoid(2.0 * {_ROOT} * ({x} + {_CUBE} * {x} * {x} * {x}))"


def _infix(sign: str) -> Callable[..., str]:
    def write(x: str, y: str, alpha: Any = 1) -> str:
        return f"{x} {sign} {y}" if alpha == 1 else f"{x} {sign} {alpha} * {y}"

    return write


WRITE: dict[Any, Callable[..., str]] = {
    aten._to_copy.default: lambda x: f"{x}.to(tl.float32)",  # of a truth value
    aten.abs.default: lambda x: f"tl.abs({x})",
    aten.add.Scalar: _infix("+"),
    aten.add.Tensor: _infix("+"),
    aten.bitwise_and.Tensor: _infix("&"),
    aten.clamp.default: _clamp,
    aten.clamp_max.default: lambda x, high: _clamp(x, None, high),
    aten.clamp_min.default: _clamp,
    aten.div.Tensor: _infix("/"),
    aten.eq.Tensor: _infix("=="),
    aten.erf.default: lambda x: f"tl.erf({x})",
    aten.exp.default: lambda x: f"tl.exp({x})",
    aten.full_like.default: lambda _, value: f"tl.full(x0.shape, {value}, tl.float32)",
    aten.ge.Scalar: _infix(">="),
    aten.gelu.default: _gelu,
    aten.gelu_backward.default: _gelu_backward,
    aten.gt.Scalar: _infix(">"),
    aten.le.Scalar: _infix("<="),
    aten.log.default: lambda x: f"tl.log({x})",
    aten.log1p.default: _log1p,
    aten.logical_and.default: _infix("&"),
    aten.logical_and_.default: _infix("&"),
    aten.lt.Scalar: _infix("<"),
    aten.mul.Scalar: _infix("*"),
    aten.mul.Tensor: _infix("*"),
    aten.neg.default: lambda x: f"-{x}",
    aten.ones_like.default: lambda _: "tl.full(x0.shape, 1.0, tl.float32)",
    aten.pow.Tensor_Scalar: _power,
    aten.reciprocal.default: lambda x: f"1.0 / {x}",
    aten.relu.default: lambda x: f"tl.maximum({x}, 0.0)",
    aten.rsqrt.default: lambda x: f"tl.rsqrt({x})",
    aten.rsub.Scalar: lambda x, y, alpha=1: f"{y} - {x}" if alpha == 1 else f"{y} - {alpha} * {x}",
    aten.scalar_tensor.default: lambda value: f"{float(value)}",
    aten.sigmoid.default: lambda x: f"tl.sigmoid({x})",
    aten.sigmoid_backward.default: lambda g, y: f"{g} * (1.0 - {y}) * {y}",
    aten.silu.default: lambda x: f"{x} * tl.sigmoid({x})",
    aten.softplus.default: _softplus,
    aten.softplus_backward.default: lambda g, x, beta, bound: (
        f"tl.where({x} * {beta} > {bound}, {g}, {g} * tl.sigmoid({x} * {beta}))"
    ),
    aten.sqrt.default: lambda x: f"tl.sqrt({x})",
    aten.square.default: lambda x: f"{x} * {x}",
    aten.sub.Scalar: _infix("-"),
    aten.sub.Tensor: _infix("-"),
    aten.tanh.default: _tanh,
    aten.tanh_backward.default: lambda g, y: f"{g} * (1.0 - {y} * {y})",
    aten.threshold_backward.default: lambda g, x, bound: f"tl.where({x} <= {bound}, 0.0, {g})",
    aten.where.self: lambda condition, x, y: f"tl.where({condition}, {x}, {y})",
    aten.zeros_like.default: lambda _: "tl.full(x0.shape, 0.0, tl.float32)",
}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)  # all are float32 in a kernel, and rounded where they leave it
SAME = {aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default}
