"""Linear layers, matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of
from varprop.rules import functions
from varprop.rules.arithmetic import add, as_moments, bilinear, expanded, is_complex, multiply, second_moment
from varprop.rules.ruleset import Backend, Op, RuleSet, rule, rule_for_each

aten = torch.ops.aten


def affine(op: Callable[..., Tensor], x: Any, weight: Any, bias: Any = None) -> Any:
    """``op(x, weight, bias)``, bilinear in x and weight. The bias rides on the first call of each moment."""
    if not is_random(weight):
        x = as_moments(x)  # where the bias alone is random, too
    mean = op(mean_of(x), mean_of(weight), mean_of(bias))
    bias_var = bias.var if is_random(bias) else None
    parts = [op(x.var, second_moment(weight), bias_var)] if is_random(x) else []
    if is_random(weight):
        parts.append(op(mean_of(x) * mean_of(x), weight.var, None if parts else bias_var))
    return Moments(mean, sum(parts[1:], parts[0]))


@rule(aten.linear.default, approximation=None, mixes=True)
def linear(x: Any, weight: Any, bias: Any = None, *, backend: Backend | None = None) -> Any:
    """y = W x + b: Σ = E[W²] Σx + Σ_W μx² + Σ_b. Exact."""
    if backend is None or not (is_random(x) and is_random(weight)):
        return affine(F.linear, x, weight, bias)
    var = backend.spread(*x, second_moment(weight), weight.var, bias.var if is_random(bias) else None)
    return Moments(F.linear(x.mean, weight.mean, mean_of(bias)), var)


def spread(mean: Tensor, var: Tensor, second: Tensor, noise: Tensor, bias: Tensor | None) -> Tensor:
    """Σx E[W²]ᵀ + μx² Σ_Wᵀ + Σ_b."""
    return F.linear(var, second, bias) + F.linear(mean * mean, noise)


@rule(aten.addmm.default, aten.baddbmm.default, approximation=None, mixes=True)
def add_matmul(bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """y = βb + α x W. Exact."""
    product = bilinear(torch.matmul, x, weight)
    return add(bias if beta == 1 else multiply(bias, beta), product, alpha=alpha)


@rule_for_each(
    *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
    *(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding),
    *(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input),
    approximation=None,
    mixes=True,
)
def convolution(op: Op, x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
    """y = W ∗ x + b: the linear layer's rule. Exact."""
    return affine(lambda x, w, b: op(x, w, b, *args, **kwargs), x, weight, bias)


CONJUGATING = aten.vdot.default, aten.linalg_vecdot.default


@rule_for_each(
    *(aten.mm.default, aten.bmm.default, aten.matmul.default, aten.mv.default, aten.dot.default),
    *(aten.outer.default, aten.tensordot.default, *CONJUGATING),
    approximation=None,
    mixes=True,
    takes_complex=True,
)
def product(op: Op, x: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
    """z = Σ_k x_k y_k: Σz = op(Σx, E[y²]) + op(μx², Σy). Exact."""
    if op in CONJUGATING and (is_complex(x) or is_complex(y)):
        return NotImplemented
    return bilinear(lambda x, y: op(x, y, *args, **kwargs), x, y)


@rule(functions.residual_linear, approximation=None, mixes=True)
def residual_linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """y = x + W x + b: x is not independent of W x, so Σ is the linear layer's with the weight I + W. Exact."""
    identity = torch.eye(mean_of(weight).shape[0], dtype=mean_of(weight).dtype, device=mean_of(weight).device)
    return Moments(
        functions.residual_linear(mean_of(x), mean_of(weight), mean_of(bias)),  # I + W would lose digits of a small W
        linear(x, add(weight, identity), bias).var,
    )


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
    """A sum of products of one or two tensors. Exact.

    What only one of them is summed over, Σ_k x_j y_jk, is summed first, so that no entry of the other counts twice.
    That is an index which the other lacks, or has once for all, as torch broadcasts sizes of 1.
    """
    if len(operands) == 1:
        return _reduced(equation, operands[0])
    terms, output = _indices(equation)
    if len(operands) > 2 or any(len(set(term)) < len(term) for term in terms):
        return NotImplemented  # the latter is a diagonal
    first, second = (_sizes(term, mean_of(part).shape) for term, part in zip(terms, operands, strict=True))
    shared = [index for index in first if index in second and first[index] == second[index]]
    if "." in shared and "." not in output:
        return NotImplemented
    kept = ["".join(index for index in term if index in shared or index in output) for term in terms]
    parts = [
        part if own == term else _reduced(f"{term}->{own}".replace(".", "..."), part)
        for part, term, own in zip(operands, terms, kept, strict=True)
    ]
    product = f"{','.join(kept)}->{output}".replace(".", "...")
    return bilinear(lambda x, y: torch.einsum(product, x, y), *parts)


def _indices(equation: str) -> tuple[list[str], str]:
    """The indices of each operand and of the result; a dot is an ellipsis."""
    inputs, arrow, output = equation.replace(" ", "").replace("...", ".").partition("->")
    once = sorted(index for index in inputs if index.isalpha() and inputs.count(index) == 1)
    return inputs.split(","), output if arrow else "." * ("." in inputs) + "".join(once)


def _sizes(term: str, shape: Sequence[Any]) -> dict[str, Any]:
    """Of each index; an ellipsis has none."""
    before, ellipsis, after = term.partition(".")
    ends = (before, shape), (after[::-1], shape[::-1])
    return {index: size for end in ends for index, size in zip(*end, strict=False)} | dict.fromkeys(ellipsis)


def _reduced(equation: str, x: Any) -> Any:
    return expanded(*(torch.einsum(equation, part) for part in x)) if is_random(x) else torch.einsum(equation, x)


LINEAR = RuleSet(
    *(linear, add_matmul, convolution, product, residual_linear, grouped_matmul, bilinear_layer, einsum),
    name="linear",
)
