"""Linear layers, matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of
from varprop.rules import functions
from varprop.rules.arithmetic import add, as_moments, bilinear, expanded, multiply, second_moment
from varprop.rules.forms import Forms
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
def linear(x: Any, weight: Any, bias: Any = None, *, forms: Forms | None = None) -> Any:
    """y = W x + b: Σ = E[W²] Σx + Σ_W μx² + Σ_b. Exact."""
    if forms is None or not (is_random(x) and is_random(weight)):
        return affine(F.linear, x, weight, bias)
    var = forms.spread(*x, second_moment(weight), weight.var, bias.var if is_random(bias) else None)
    return Moments(F.linear(x.mean, weight.mean, mean_of(bias)), var)


def spread(mean: Tensor, var: Tensor, second: Tensor, noise: Tensor, bias: Tensor | None) -> Tensor:
    """Σx E[W²]ᵀ + μx² Σ_Wᵀ + Σ_b."""
    return F.linear(var, second, bias) + F.linear(mean * mean, noise)


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


CONJUGATING = (aten.vdot.default, aten.linalg_vecdot.default)


def _bilinear(op: Callable[..., Tensor]) -> Rule:
    @rule(op, approximation=None, mixes=True, takes_complex=op not in CONJUGATING)
    def product(x: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
        """z = Σ_k x_k y_k: Σz = op(Σx, E[y²]) + op(μx², Σy). Exact."""
        return bilinear(lambda x, y: op(x, y, *args, **kwargs), x, y)

    return product


@rule(functions.grouped_matmul, approximation=None, mixes=True)
def grouped_matmul(op: Callable[..., Tensor], x: Any, weight: Any, offsets: Tensor) -> Any:
    """Each group of rows of x times a matrix of its own: the matrix product's rule. Exact."""
    return bilinear(lambda x, w: op(x, w, offsets), x, weight)


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


@rule(aten.einsum.default, approximation=None, mixes=True, takes_complex=True)
def einsum(equation: str, operands: list[Any], **kwargs: Any) -> Any:
    """A sum of products of one or two tensors. Exact."""
    if len(operands) == 1:
        x = operands[0]
        return expanded(torch.einsum(equation, x.mean), torch.einsum(equation, x.var))
    if len(operands) > 2:
        return NotImplemented
    terms, output = _indices(equation)
    if any(len(set(term)) < len(term) for term in terms):
        return NotImplemented  # a diagonal
    if "." not in equation:
        terms, operands = _summed_first(terms, output, operands)
    elif not set(terms[0]) ^ set(terms[1]) <= set(output):
        return NotImplemented  # a sum has an entry several times: Σ_k x_j y_jk
    spelled = f"{','.join(terms)}->{output}".replace(".", "...")
    return bilinear(lambda x, y: torch.einsum(spelled, x, y), *operands)


def _indices(equation: str) -> tuple[list[str], str]:
    """The indices of each operand and of the result; a dot is an ellipsis."""
    inputs, arrow, output = equation.replace(" ", "").replace("...", ".").partition("->")
    once = sorted(index for index in inputs if index.isalpha() and inputs.count(index) == 1)
    return inputs.split(","), output if arrow else "." * ("." in inputs) + "".join(once)


def _summed_first(terms: list[str], output: str, operands: list[Any]) -> tuple[list[str], list[Any]]:
    """What only one operand is summed over is summed in it first, so that no entry of the other counts twice.

    That is an index the other lacks, Σ_k x_j y_jk, or has once for all, as torch broadcasts sizes of 1.
    """
    terms, operands = list(terms), list(operands)
    for own, other in ((0, 1), (1, 0)):
        for index in terms[own]:
            size = mean_of(operands[own]).shape[terms[own].index(index)]
            shared = index in terms[other]
            once = shared and mean_of(operands[other]).shape[terms[other].index(index)] == 1 and size != 1
            if index in output or (shared and not once):
                continue
            operands[own] = _over(torch.sum, operands[own], terms[own].index(index))
            terms[own] = terms[own].replace(index, "")
            if once:
                operands[other] = _over(torch.squeeze, operands[other], terms[other].index(index))
                terms[other] = terms[other].replace(index, "")
    return terms, operands


def _over(op: Callable[[Tensor, int], Tensor], x: Any, dim: int) -> Any:
    return Moments(op(x.mean, dim), op(x.var, dim)) if is_random(x) else op(x, dim)


LINEAR = RuleSet(
    linear,
    add_matmul,
    *map(_convolution, (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)),
    *map(_convolution, (aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding)),
    *map(_convolution, (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)),
    *map(_bilinear, (aten.mm.default, aten.bmm.default, aten.matmul.default, aten.mv.default, aten.dot.default)),
    *map(_bilinear, (aten.outer.default, aten.tensordot.default, aten.vdot.default, aten.linalg_vecdot.default)),
    grouped_matmul,
    bilinear_layer,
    einsum,
    name="linear",
)
