"""Pooling and resampling of images: windows, interpolation, given positions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.moments import Moments, is_random
from varprop.rules.arithmetic import as_moments
from varprop.rules.ruleset import Op, RuleSet, rule, rule_for_each

aten = torch.ops.aten


def _tuple(value: Any, rank: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * rank if len(values) == 1 else values


def _rank(op: Any) -> int:
    """Of the images, 1 to 3: it is in the name of every op here."""
    return int(next(filter(str.isdigit, op.name())))


@rule_for_each(
    aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default, approximation=None, mixes=True
)
def average_pool(op: Op, x: Moments, kernel: Any, stride: Any = (), *args: Any, **kwargs: Any) -> Moments:
    """Means of windows: Σ = (1/n²) Σ v, n as the op counts it at the border. Exact."""
    rank = _rank(op)
    ones = torch.ones_like(x.mean[:1, :1] if x.mean.ndim == rank + 2 else x.mean[:1])
    # Where n entries of a window exist and the op divides by d, ones give n/d and their count n.
    divided = op(ones, kernel, stride, *args, **kwargs)
    return Moments(
        op(x.mean, kernel, stride, *args, **kwargs),
        op(x.var, kernel, stride, *args, **kwargs) * (divided / _counted(rank, ones, kernel, stride, *args)),
    )


def _counted(
    rank: int, ones: Tensor, kernel: Any, stride: Any, padding: Any = 0, ceil_mode: bool = False, *_: Any
) -> Tensor:
    """How many entries each window has."""
    if rank > 1:
        pool = {2: F.avg_pool2d, 3: F.avg_pool3d}[rank]
        return pool(ones, kernel, stride or kernel, padding, ceil_mode, divisor_override=1)
    kernel, stride = (1, *_tuple(kernel, 1)), (1, *_tuple(stride or kernel, 1))
    return _counted(2, ones.unsqueeze(-2), kernel, stride, (0, *_tuple(padding, 1)), ceil_mode).squeeze(-2)


@rule_for_each(
    *(aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool3d.default),
    approximation=None,
    mixes=True,
)
def adaptive_average_pool(op: Op, x: Moments, output_size: Any) -> Moments:
    """Means of windows of varying size: Σ = (1/n²) Σ v. Exact."""
    var = op(x.var, output_size)
    for offset, out in enumerate(reversed(_tuple(output_size, _rank(op)))):
        size = x.mean.shape[-1 - offset]
        sizes = [-(-(i + 1) * size // out) - i * size // out for i in range(out)]
        factor = torch.tensor(sizes, dtype=var.dtype, device=var.device) if len(set(sizes)) > 1 else sizes[0]
        var = var / (factor.reshape(-1, *[1] * offset) if isinstance(factor, Tensor) else factor)
    return Moments(op(x.mean, output_size), var)


WITH_INDICES: dict[Any, Any] = {
    aten.max_pool1d.default: aten.max_pool1d_with_indices.default,
    aten.max_pool2d.default: aten.max_pool2d_with_indices.default,
    aten.max_pool3d.default: aten.max_pool3d_with_indices.default,
}


@rule_for_each(
    *WITH_INDICES.keys(),
    *WITH_INDICES.values(),
    *(aten.adaptive_max_pool1d.default, aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default),
    approximation="entries of a window are taken to move together",
    mixes=True,
)
def max_pool(op: Op, x: Moments, *args: Any) -> Any:
    """The largest mean of each window, with its variance, as if entries of a window moved together.

    After a convolution they nearly do, because they share the noise of its weights. As maxima of independent
    Gaussians their means would come out far too high.
    """
    rank = _rank(op)
    values, indices = WITH_INDICES.get(op, op)(x.mean, *args)
    var = _picked(x.var.flatten(-rank), indices.flatten(-rank), values).reshape(values.shape)
    return Moments(values, var) if op in WITH_INDICES else (Moments(values, var), indices)


def _picked(entries: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """Entries of the last dimension, in the layout of ``like``: with channels last, those of a place lie together."""
    if like.is_contiguous() or entries.ndim < 3:
        return entries.gather(-1, places)
    return entries.mT.gather(-2, places.mT).mT


@rule_for_each(
    *(aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec),
    *(aten.upsample_bicubic2d.vec, aten._upsample_bilinear2d_aa.default, aten._upsample_bicubic2d_aa.default),
    approximation=None,
    mixes=True,
)
def interpolate(op: Op, x: Moments, *args: Any) -> Moments:
    """Weighted means of neighbours, one dim after the other: Σ takes the squared weights. Exact."""
    sizes, var = x.mean.shape[2:], x.var
    for dim, size in enumerate(sizes):
        eye = torch.eye(size, dtype=var.dtype, device=var.device)
        eye = eye.reshape(1, size, *(size if d == dim else 1 for d in range(len(sizes))))
        weights = op(eye.expand(1, size, *sizes), *args)[0].movedim(dim + 1, 1)
        weights = weights.reshape(*weights.shape[:2], -1)[..., 0]
        var = torch.tensordot(var, weights * weights, dims=([2], [0]))  # each dim in turn is the first left
    return Moments(op(x.mean, *args), var)


BILINEAR, ZEROS = 0, 0  # of torch's modes of interpolation and of padding


def _neglected(x: Any, grid: Any, *_: Any) -> str | None:
    return "linearised in the positions" if is_random(grid) else None


@rule(aten.grid_sampler.default, approximation=_neglected, mixes=True)
def grid_sample(x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    """Σ_k w_k x_k over four neighbours: Σ = Σ_k w_k² v_k, exact, plus (∂/∂position)² times the position's variance."""
    image, position = as_moments(x), as_moments(grid)
    if (mode, padding) != (BILINEAR, ZEROS) or image.mean.ndim != 4:
        return NotImplemented
    mean = aten.grid_sampler.default(image.mean, position.mean, mode, padding, align_corners)
    (column, pitch_x), (row, pitch_y) = (
        _pixels(position.mean[..., axis], image.mean.shape[3 - axis], align_corners) for axis in (0, 1)
    )
    left, top = column.floor(), row.floor()
    var = slope_x = slope_y = torch.zeros_like(mean)
    for right in (0, 1):
        for down in (0, 1):
            share_x, share_y = (
                (place - start if far else 1 - (place - start)).unsqueeze(1)
                for place, start, far in ((column, left, right), (row, top, down))
            )
            corner = Moments(*(_pick(part, top + down, left + right) for part in image))
            var = var + (share_x * share_y).square() * corner.var
            slope_x = slope_x + (2 * right - 1) * share_y * corner.mean
            slope_y = slope_y + (2 * down - 1) * share_x * corner.mean
    moved = position.var.unsqueeze(1)
    var = var + (pitch_x * slope_x).square() * moved[..., 0] + (pitch_y * slope_y).square() * moved[..., 1]
    return Moments(mean, var)


@rule(aten.affine_grid_generator.default, approximation=None, mixes=True)
def affine_grid(theta: Moments, size: list[int], align_corners: bool) -> Any:
    """Positions θ (x, y, 1)ᵀ: Σ = Σ_j v_ij (x², y², 1)_j. Exact."""
    if len(size) != 4:
        return NotImplemented
    identity = torch.eye(2, 3, dtype=theta.var.dtype, device=theta.var.device)[None]
    base = aten.affine_grid_generator.default(identity, [1, *size[1:]], align_corners)[0]
    base = torch.cat([base, torch.ones_like(base[..., :1])], -1)
    return Moments(
        aten.affine_grid_generator.default(theta.mean, size, align_corners),
        torch.einsum("hwj,nij->nhwi", base * base, theta.var),
    )


def _pixels(position: Tensor, size: Any, align_corners: bool) -> tuple[Tensor, Any]:
    """Where a position from −1 to 1 lies among ``size`` pixels, and the pixels of a unit of it."""
    pitch = (size - 1) / 2 if align_corners else size / 2
    return (position + 1) * pitch - (0.0 if align_corners else 0.5), pitch


def _pick(image: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The pixels [N, C, …] at rows and columns [N, …], 0 outside."""
    height, width = image.shape[2:]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long().flatten(1).unsqueeze(1)
    found = image.flatten(2).gather(2, place.expand(-1, image.shape[1], -1))
    return found.unflatten(2, row.shape[1:]) * inside.unsqueeze(1)


POOLING = RuleSet(
    *(average_pool, adaptive_average_pool, max_pool, interpolate, grid_sample, affine_grid), name="pooling"
)
