"""Linear layers, matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of
from varprop.rules.arithmetic import add, as_moments, bilinear, expanded, multiply, second_moment
from varprop.rules.ruleset import Rule, RuleSet, rule

aten = torch.ops.aten


def affine(op: Callable[..., Tensor], x: Any, weight: Any, bias: Any = None) -> Any:
    """``op(x, weight, bias)``, bilinear in x and weight. The bias rides on the first call of each moment."""
    mean = op(mean_of(x), mean_of(weight), mean_of(bias))
    bias_var = bias.var if is_random(bias) else None
    parts = [op(x.var, second_moment(weight), bias_var)] if is_random(x) else []
    if is_random(weight):
        parts.append(op(mean_of(x) * mean_of(x), weight.var, None if parts else bias_var))
    if parts:
        return Moments(mean, sum(parts[1:], parts[0]))
    return add(op(x, weight, None), bias)  # only the bias is random


@rule(aten.linear.default, approximation=None, mixes=True)
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """y = W x + b: Σ = E[W²] Σx + Σ_W μx² + Σ_b. Exact."""
    return affine(torch.nn.functional.linear, x, weight, bias)


@rule(aten.addmm.default, aten.baddbmm.default, approximation=None, mixes=True)
def add_matmul(bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """y = βb + α x W. Exact."""
    product = bilinear(torch.matmul, x, weight)
    return add(bias if beta == 1 else multiply(bias, beta), product, alpha=alpha)


def _convolution(op: Callable[..., Tensor]) -> Rule:
    @rule(op, approximation=None, mixes=True)
    def convolution(x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
        """y = W ∗ x + b: the linear layer's rule. Exact."""
        if bias is None or not is_random(bias) or is_random(x) or is_random(weight):
            return affine(lambda x, w, b: op(x, w, b, *args, **kwargs), x, weight, bias)
        channels = (-1, *[1] * (weight.ndim - 2))
        shaped = Moments(bias.mean.reshape(channels), bias.var.reshape(channels))
        return add(op(x, weight, None, *args, **kwargs), shaped)

    return convolution


def _bilinear(op: Callable[..., Tensor]) -> Rule:
    @rule(op, approximation=None, mixes=True)
    def product(x: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
        """z = Σ_k x_k y_k: Σz = op(Σx, E[y²]) + op(μx², Σy). Exact."""
        return bilinear(lambda x, y: op(x, y, *args, **kwargs), x, y)

    return product


@rule(aten.bilinear.default, approximation=None, mixes=True)
def bilinear_layer(x: Any, y: Any, weight: Any, bias: Any = None) -> Any:
    """z_k = xᵀ W_k y + b_k: Σz = E[x²]ᵀ Σ_W E[y²] + Σxᵀ μ_W² Σy + Σxᵀ (μ_W μy)² + (μxᵀ μ_W)² Σy + Σ_b. Exact."""
    x, y, weight = map(as_moments, (x, y, weight))

    def form(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
        return torch.einsum("...i,kij,...j->...k", x, weight, y)

    right = torch.einsum("kij,...j->...ki", weight.mean, y.mean)
    left = torch.einsum("...i,kij->...kj", x.mean, weight.mean)
    var = (
        form(second_moment(x), weight.var, second_moment(y))
        + form(x.var, weight.mean * weight.mean, y.var)
        + torch.einsum("...i,...ki->...k", x.var, right * right)
        + torch.einsum("...kj,...j->...k", left * left, y.var)
    )
    summed = Moments(form(x.mean, weight.mean, y.mean), var)
    return summed if bias is None else add(summed, bias)


@rule(aten.einsum.default, approximation=None, mixes=True)
def einsum(equation: str, operands: list[Any], **kwargs: Any) -> Any:
    """A sum of products of one or two tensors. Exact."""
    if len(operands) == 1:
        x = operands[0]
        return expanded(torch.einsum(equation, x.mean), torch.einsum(equation, x.var))
    if len(operands) == 2 and _adds_each_entry_once(equation):
        return bilinear(lambda x, y: torch.einsum(equation, x, y), *operands)
    return NotImplemented


def _adds_each_entry_once(equation: str) -> bool:
    """Is every index that is summed over in both operands? If not, a sum has an entry several times: Σ_k x_j y_jk."""
    inputs, arrow, output = equation.replace(" ", "").replace("...", ".").partition("->")
    kept = set(output) if arrow else {index for index in inputs if inputs.count(index) == 1}
    x, y = map(set, inputs.split(","))
    return x ^ y <= kept


LINEAR = RuleSet(
    linear,
    add_matmul,
    *map(_convolution, (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)),
    *map(_convolution, (aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding)),
    *map(_convolution, (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)),
    *map(_bilinear, (aten.mm.default, aten.bmm.default, aten.matmul.default, aten.mv.default, aten.dot.default)),
    *map(_bilinear, (aten.outer.default, aten.tensordot.default)),
    bilinear_layer,
    einsum,
    name="linear",
)
