"""Norms that use statistics of their input: centre, divide by the root of a statistic, then an affine map.

CVP freezes the statistic at its expectation E[x²] = μ² + Σ; Streamlining at its value for the mean, μ². That is the
only difference, so both rule sets are made by ``norm_rules``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of
from varprop.rules import functions
from varprop.rules.arithmetic import add, as_moments, multiply, second_moment
from varprop.rules.normal import in_float32
from varprop.rules.ruleset import Op, Rule, RuleSet, rule

aten = torch.ops.aten

Statistic = Callable[[Moments], Tensor]
Dims = list[int] | tuple[int, ...]


def centre(x: Moments, dims: Dims) -> Moments:
    """x − x̄ over ``dims`` (D entries):  Var[x_d − x̄] = (1 − 2/D) v_d + v̄/D. Exact."""
    size = math.prod(x.mean.shape[dim] for dim in dims)
    average = x.var.mean(dims, keepdim=True)
    return Moments(x.mean - x.mean.mean(dims, keepdim=True), (1 - 2 / size) * x.var + average / size)


@in_float32
def scale_by_root(x: Moments, dims: Dims, eps: Any, statistic: Statistic, *, centred: bool = False) -> Moments:
    """x / √(mean of the statistic + ε), x centred first if asked for."""
    x = centre(x, dims) if centred else x
    factor = torch.rsqrt(statistic(x).mean(dims, keepdim=True) + mean_of(eps))
    return multiply(x, factor)


@in_float32
def divide_by_length(x: Moments, dims: Dims, statistic: Statistic, inside: Any, outside: Any, least: Any) -> Moments:
    """x / max(√(sum of the statistic + inside) + outside, least)."""
    length = (statistic(x).sum(dims, keepdim=True) + mean_of(inside)).sqrt() + mean_of(outside)
    factor = length.clamp(min=mean_of(least)).reciprocal()
    return multiply(x, factor)


def scale_and_shift(x: Any, weight: Any, bias: Any, *, add: Op = add, multiply: Op = multiply) -> Any:
    """γ x + β; either may be missing, random or constant."""
    scaled = x if weight is None else multiply(x, weight)
    return scaled if bias is None else add(scaled, bias)


def per_channel(parameter: Any, ndim: int) -> Any:
    """A vector of C entries, shaped to act along dim 1."""
    shape = (1, -1, *[1] * (ndim - 2))
    if is_random(parameter):
        return Moments(parameter.mean.reshape(shape), parameter.var.reshape(shape))
    return None if parameter is None else parameter.reshape(shape)


def norm_rules(statistic: Statistic, *, frozen: str, name: str) -> RuleSet:
    """The rules of every norm with input statistics, for one choice of statistic; ``frozen`` says what it neglects."""

    def approximation(x: Any, *_: Any, **__: Any) -> str | None:
        return frozen if is_random(x) else None

    declare = functools.partial(rule, approximation=approximation, mixes=True, scaled=True)

    @declare(functions.rms_normalize)
    def rms_normalize(x: Any, dims: Dims, eps: Any) -> Moments:
        """x/√(mean x² + ε), written out: RMSNorm, filter response norm."""
        return scale_by_root(as_moments(x), dims, eps, statistic)

    @declare(functions.unit_length)
    def unit_length(x: Any, dims: Dims, inside: Any = 0.0, outside: Any = 0.0, least: Any = 0.0) -> Moments:
        """x/‖x‖, with an ε somewhere; E‖x‖² = Σ (μ² + v)."""
        return divide_by_length(as_moments(x), dims, statistic, inside, outside, least)

    @declare(aten._weight_norm.default, scaled=False)
    def weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
        """g v/‖v‖, a norm for each index of ``dim``."""
        ndim = mean_of(v).ndim
        return multiply(unit_length(v, [d for d in range(ndim) if d != dim % ndim or dim == -1]), g)

    @declare(functions.standardize)
    def standardize(x: Any, dims: Dims, eps: Any) -> Moments:
        """(x − x̄)/√(s² + ε), written out."""
        return scale_by_root(as_moments(x), dims, eps, statistic, centred=True)

    modules = _module_rules(declare, rms_normalize, standardize)
    return RuleSet(rms_normalize, unit_length, weight_norm, standardize, *modules, name=name)


def _module_rules(declare: Callable[..., Any], rms_normalize: Rule, standardize: Rule) -> list[Rule]:
    """The norms that torch has modules for, by those that are written out."""

    @declare(aten.layer_norm.default)
    def layer_norm(
        x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
    ) -> Any:
        """y = γ (x − x̄)/s + β over the last D features.

        E[s²] = s²(μ) + (1 − 1/D) v̄        Var[x_d − x̄] = (1 − 2/D) v_d + v̄/D
        """
        return scale_and_shift(standardize(x, tuple(range(-len(normalized_shape), 0)), eps), weight, bias)

    @declare(aten.rms_norm.default)
    def rms_norm(x: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
        """y = γ x/√(mean x² + ε) over the last features; E[mean x²] = mean(μ² + Σ)."""
        dims = tuple(range(-len(normalized_shape), 0))
        x = as_moments(x)
        eps = torch.finfo(x.mean.dtype).eps if eps is None else eps
        return scale_and_shift(rms_normalize(x, dims, eps), weight, None)

    @declare(aten.group_norm.default)
    def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
        """LayerNorm's rule over each group of channels."""
        x = as_moments(x)
        shape = x.mean.shape
        grouped = Moments(*(part.reshape(shape[0], groups, -1) for part in x))
        normed = Moments(*(part.reshape(shape) for part in standardize(grouped, (-1,), eps)))
        return scale_and_shift(normed, per_channel(weight, len(shape)), per_channel(bias, len(shape)))

    def of_input(x: Any, weight: Any, bias: Any, mean: Any, var: Any, use_input_stats: bool, *_: Any) -> str | None:
        return group_norm.neglects(x) if use_input_stats else None

    @declare(aten.instance_norm.default, approximation=of_input)
    def instance_norm(
        x: Any,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        use_input_stats: bool,
        _: float,
        eps: float,
        *__: Any,
    ) -> Any:
        """LayerNorm's rule over the positions of each channel; with running statistics, BatchNorm's."""
        if not use_input_stats:
            return batch_norm(x, weight, bias, running_mean, running_var, 0.0, eps)[0]
        ndim = mean_of(x).ndim
        normed = standardize(x, tuple(range(2, ndim)), eps)
        return scale_and_shift(normed, per_channel(weight, ndim), per_channel(bias, ndim))

    return [layer_norm, rms_norm, group_norm, instance_norm]


@rule(aten._native_batch_norm_legit_no_training.default, approximation=None)
def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    *,
    add: Op = add,
    multiply: Op = multiply,
) -> tuple[Any, None, None]:
    """y = γ (x − m)/√(s² + ε) + β with running statistics, which are constants. Exact."""
    mean, factor, weight, bias = (
        per_channel(v, mean_of(x).ndim) for v in (running_mean, torch.rsqrt(running_var + eps), weight, bias)
    )
    y = scale_and_shift(multiply(add(x, -mean), factor), weight, bias, add=add, multiply=multiply)
    return y, None, None


NORMALIZATION = norm_rules(
    second_moment, frozen="the statistic is frozen at its expectation; error O(1/D)", name="normalization"
)
