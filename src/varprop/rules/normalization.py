"""Norms that use statistics of their input: centre, divide by the root of a statistic, then an affine map.

CVP freezes the statistic at its expectation E[x²] = μ² + Σ (paper, eq. layernorm_s2); Streamlining at
its value for the mean, μ². That is the only difference, so both rule sets are made by ``norms``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments, is_random, mean_of
from varprop.rules import functions as ops
from varprop.rules.arithmetic import add, as_moments, multiply, second_moment
from varprop.rules.ruleset import Op, RuleSet, rule

aten = torch.ops.aten

Statistic = Callable[[Moments], Tensor]
Dims = list[int] | tuple[int, ...]


def centre(x: Moments, dims: Dims) -> Moments:
    """x − x̄ over ``dims`` (D entries):  Var[x_d − x̄] = (1 − 2/D) v_d + v̄/D. Exact."""
    size = math.prod(x.mean.shape[dim] for dim in dims)
    average = x.var.mean(dims, keepdim=True)
    return Moments(x.mean - x.mean.mean(dims, keepdim=True), (1 - 2 / size) * x.var + average / size)


def scale_by_root(x: Moments, dims: Dims, eps: Any, statistic: Statistic) -> Moments:
    """x / √(mean of the statistic + ε)."""
    factor = torch.rsqrt(statistic(x).mean(dims, keepdim=True) + mean_of(eps))
    return Moments(x.mean * factor, x.var * (factor * factor))


def affine(x: Any, weight: Any, bias: Any) -> Any:
    """γ x + β; either may be missing, random or constant."""
    scaled = x if weight is None else multiply(x, weight)
    return scaled if bias is None else add(scaled, bias)


def per_channel(parameter: Any, ndim: int) -> Any:
    """A vector of C entries, shaped to act along dim 1."""
    shape = (1, -1, *[1] * (ndim - 2))
    if is_random(parameter):
        return Moments(parameter.mean.reshape(shape), parameter.var.reshape(shape))
    return None if parameter is None else parameter.reshape(shape)


def norms(statistic: Statistic, note: str, name: str) -> RuleSet:
    """The rules of every norm with input statistics, for one choice of statistic."""

    def standardize(x: Any, dims: Dims, eps: Any) -> Moments:
        return scale_by_root(centre(as_moments(x), dims), dims, eps, statistic)

    def layer_norm(
        x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
    ) -> Any:
        """y = γ (x − x̄)/s + β over the last D features.

        E[s²] = s²(μ) + (1 − 1/D) v̄        Var[x_d − x̄] = (1 − 2/D) v_d + v̄/D
        """
        return affine(standardize(x, tuple(range(-len(normalized_shape), 0)), eps), weight, bias)

    def rms_norm(x: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
        """y = γ x/√(mean x² + ε) over the last features; E[mean x²] = mean(μ² + Σ)."""
        dims = tuple(range(-len(normalized_shape), 0))
        x = as_moments(x)
        eps = torch.finfo(x.mean.dtype).eps if eps is None else eps
        return affine(scale_by_root(x, dims, eps, statistic), weight, None)

    def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
        """LayerNorm's rule over each group of channels."""
        x = as_moments(x)
        shape = x.mean.shape
        grouped = Moments(*(part.reshape(shape[0], groups, -1) for part in x))
        normed = Moments(*(part.reshape(shape) for part in standardize(grouped, (-1,), eps)))
        return affine(normed, per_channel(weight, len(shape)), per_channel(bias, len(shape)))

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
        return affine(normed, per_channel(weight, ndim), per_channel(bias, ndim))

    def rms_normalize(x: Any, dims: Dims, eps: Any) -> Moments:
        """x/√(mean x² + ε), written out: RMSNorm, filter response norm."""
        return scale_by_root(as_moments(x), dims, eps, statistic)

    def standardized(x: Any, dims: Dims, eps: Any) -> Moments:
        """(x − x̄)/√(s² + ε), written out."""
        return standardize(x, dims, eps)

    targets: dict[Callable[..., Any], Op] = {
        layer_norm: aten.layer_norm.default,
        rms_norm: aten.rms_norm.default,
        group_norm: aten.group_norm.default,
        instance_norm: aten.instance_norm.default,
        rms_normalize: ops.rms_normalize,
        standardized: ops.standardize,
    }
    for function in targets:
        function.__doc__ = f"{function.__doc__}\n\n{note}"
    return RuleSet(*(rule(op, scaled=True)(function) for function, op in targets.items()), name=name)


def batch_norm(
    x: Any, weight: Any, bias: Any, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Any, None, None]:
    """y = γ (x − m)/√(s² + ε) + β with running statistics, which are constants. Exact."""
    ndim = mean_of(x).ndim
    mean, factor = (per_channel(v, ndim) for v in (running_mean, torch.rsqrt(running_var + eps)))
    return affine(multiply(add(x, -mean), factor), per_channel(weight, ndim), per_channel(bias, ndim)), None, None


BATCH_NORM = rule(aten._native_batch_norm_legit_no_training.default)(batch_norm)

NORMALIZATION = norms(
    second_moment,
    "Approximation: the statistic is frozen at its expectation (paper, eq. layernorm_s2); error O(1/D).",
    name="normalization",
)
