"""Average and maximum pooling, interpolation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.moments import Moments
from varprop.rules.ruleset import Rule, RuleSet, rule

aten = torch.ops.aten


def _tuple(value: Any, rank: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * rank if len(values) == 1 else values


def _average_pool(op: Callable[..., Tensor], rank: int) -> Rule:
    @rule(op, approximation=None, mixes=True)
    def average_pool(x: Moments, kernel: Any, stride: Any = (), *args: Any, **kwargs: Any) -> Moments:
        """Means of windows: Σ = (1/n²) Σ v, n as the op counts it at the border. Exact."""
        ones = torch.ones_like(x.mean[:1, :1] if x.mean.ndim == rank + 2 else x.mean[:1])
        # Where n entries of a window exist and the op divides by d, ones give n/d and their count n.
        divided = op(ones, kernel, stride, *args, **kwargs)
        return Moments(
            op(x.mean, kernel, stride, *args, **kwargs),
            op(x.var, kernel, stride, *args, **kwargs) * (divided / _counted(rank, ones, kernel, stride, *args)),
        )

    return average_pool


def _counted(
    rank: int, ones: Tensor, kernel: Any, stride: Any, padding: Any = 0, ceil_mode: bool = False, *_: Any
) -> Tensor:
    """How many entries each window has."""
    if rank > 1:
        pool = {2: F.avg_pool2d, 3: F.avg_pool3d}[rank]
        return pool(ones, kernel, stride or kernel, padding, ceil_mode, divisor_override=1)
    kernel, stride = (1, *_tuple(kernel, 1)), (1, *_tuple(stride or kernel, 1))
    return _counted(2, ones.unsqueeze(-2), kernel, stride, (0, *_tuple(padding, 1)), ceil_mode).squeeze(-2)


def _adaptive_average_pool(op: Callable[..., Tensor], rank: int) -> Rule:
    @rule(op, approximation=None, mixes=True)
    def adaptive_average_pool(x: Moments, output_size: Any) -> Moments:
        """Means of windows of varying size: Σ = (1/n²) Σ v. Exact."""
        var = op(x.var, output_size)
        for offset, out in enumerate(reversed(_tuple(output_size, rank))):
            size = x.mean.shape[-1 - offset]
            sizes = [-(-(i + 1) * size // out) - i * size // out for i in range(out)]
            factor = torch.tensor(sizes, dtype=var.dtype, device=var.device) if len(set(sizes)) > 1 else sizes[0]
            var = var / (factor.reshape(-1, *[1] * offset) if isinstance(factor, Tensor) else factor)
        return Moments(op(x.mean, output_size), var)

    return adaptive_average_pool


def _max_pool(op: Callable[..., Any], with_indices: Callable[..., tuple[Tensor, Tensor]], rank: int) -> Rule:
    @rule(op, approximation="entries of a window are taken to move together", mixes=True)
    def max_pool(x: Moments, *args: Any) -> Any:
        """The largest mean of each window, with its variance, as if entries of a window moved together.

        After a convolution they nearly do, because they share the noise of its weights. As maxima of independent
        Gaussians their means would come out far too high.
        """
        values, indices = with_indices(x.mean, *args)
        var = _picked(x.var.flatten(-rank), indices.flatten(-rank), values).reshape(values.shape)
        return (Moments(values, var), indices) if op is with_indices else Moments(values, var)

    return max_pool


def _picked(entries: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """Entries of the last dimension, in the layout of ``like``: with channels last, those of a place lie together."""
    if like.is_contiguous() or entries.ndim < 3:
        return entries.gather(-1, places)
    return entries.mT.gather(-2, places.mT).mT


def _interpolation(op: Callable[..., Tensor]) -> Rule:
    @rule(op, approximation=None, mixes=True)
    def interpolate(x: Moments, *args: Any) -> Moments:
        """Weighted means of neighbours, one dim after the other: Σ takes the squared weights. Exact."""
        sizes, var = x.mean.shape[2:], x.var
        for dim, size in enumerate(sizes):
            eye = torch.eye(size, dtype=var.dtype, device=var.device)
            eye = eye.reshape(1, size, *(size if d == dim else 1 for d in range(len(sizes))))
            weights = op(eye.expand(1, size, *sizes), *args)[0].movedim(dim + 1, 1)
            weights = weights.reshape(*weights.shape[:2], -1)[..., 0]
            var = torch.tensordot(var, weights * weights, dims=([2], [0]))  # each dim in turn is the first left
        return Moments(op(x.mean, *args), var)

    return interpolate


POOLING = RuleSet(
    _average_pool(aten.avg_pool1d.default, 1),
    _average_pool(aten.avg_pool2d.default, 2),
    _average_pool(aten.avg_pool3d.default, 3),
    _adaptive_average_pool(aten.adaptive_avg_pool1d.default, 1),
    _adaptive_average_pool(aten.adaptive_avg_pool2d.default, 2),
    _adaptive_average_pool(aten.adaptive_avg_pool3d.default, 3),
    _interpolation(aten.upsample_linear1d.vec),
    _interpolation(aten.upsample_bilinear2d.vec),
    _interpolation(aten.upsample_trilinear3d.vec),
    _interpolation(aten.upsample_bicubic2d.vec),
    _interpolation(aten._upsample_bilinear2d_aa.default),
    _interpolation(aten._upsample_bicubic2d_aa.default),
    name="pooling",
)
MAX_POOLING = RuleSet(
    _max_pool(aten.max_pool1d.default, aten.max_pool1d_with_indices.default, 1),
    _max_pool(aten.max_pool2d.default, aten.max_pool2d_with_indices.default, 2),
    _max_pool(aten.max_pool3d.default, aten.max_pool3d_with_indices.default, 3),
    _max_pool(aten.max_pool1d_with_indices.default, aten.max_pool1d_with_indices.default, 1),
    _max_pool(aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices.default, 2),
    _max_pool(aten.max_pool3d_with_indices.default, aten.max_pool3d_with_indices.default, 3),
    _max_pool(aten.adaptive_max_pool1d.default, aten.adaptive_max_pool1d.default, 1),
    _max_pool(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool2d.default, 2),
    _max_pool(aten.adaptive_max_pool3d.default, aten.adaptive_max_pool3d.default, 3),
    name="max pooling",
)
