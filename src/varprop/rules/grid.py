"""Images sampled at given positions: spatial transformers, deformable attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from varprop.moments import Moments, is_random
from varprop.rules.arithmetic import as_moments
from varprop.rules.ruleset import RuleSet, rule

aten = torch.ops.aten

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


GRID = RuleSet(grid_sample, affine_grid, name="grids")
