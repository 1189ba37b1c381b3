"""Attention in one pass over keys and values: both moments, and nothing of size L × L in memory."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from varprop.kernels.custom_op import registered
from varprop.kernels.launch import FEW, at_least_16, on, usable
from varprop.moments import Moments, mean_of
from varprop.rules.attention import attention as rule

FEWEST = 16  # columns of a tile
LARGEST_HEAD = 256


def reference(
    query: Tensor, key: Tensor, mean: Tensor, var: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """A μ_V and (A ⊙ A) Σ_V, A = softmax(QKᵀ scale + mask); a row in which all is masked gives 0.

    The rule itself; queries may share the heads of keys and values, variances may be columns of other numbers.
    """
    shared = query.shape[-3] != key.shape[-3] if query.ndim > 2 else False
    value = Moments(mean, var)
    return tuple(rule(query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=shared))


def arguments_of(
    width: int,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Any, ...]:
    """What the op takes, from what torch's attention of heads of this width takes; the values are random."""
    scale = 1 / math.sqrt(width) if scale is None else scale
    return mean_of(query), mean_of(key), *value, mean_of(attn_mask), is_causal, scale


def _outline(query: Tensor, key: Tensor, mean: Tensor, var: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Heads beside each other, as the layer that follows takes them without a copy."""
    if query.ndim != 4:
        first, second = (x.new_empty((*query.shape[:-1], x.shape[-1])) for x in (mean, var))
        return first, second
    batch, heads, length = query.shape[:-1]
    first, second = (x.new_empty((batch, length, heads, x.shape[-1])).transpose(1, 2) for x in (mean, var))
    return first, second


def _fits(query: Tensor, key: Tensor, mean: Tensor, var: Tensor, mask: Tensor | None, *_: Any) -> bool:
    tensors = query, key, mean, var
    return (
        usable(*tensors)
        and all(x.ndim == 4 and x.numel() for x in tensors)
        and query.dtype == key.dtype == mean.dtype
        and query.shape[0] == key.shape[0] == mean.shape[0] == var.shape[0]
        and query.shape[1] % key.shape[1] == 0
        and key.shape[1] == mean.shape[1]
        and mean.shape[:-1] == var.shape[:-1]
        and max(query.shape[-1], mean.shape[-1], var.shape[-1]) <= LARGEST_HEAD
        and (mask is None or mask.ndim <= 4)
    )


def _launch(
    query: Tensor, key: Tensor, mean: Tensor, var: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    from varprop.kernels.triton_kernels import attention_kernel

    batch, heads, length, size = query.shape
    results, asked = _outline(query, key, mean, var), var.shape[-1]
    var = _in_full_columns(var, mean.dtype)
    widest = max(size, mean.shape[-1], var.shape[-1])
    rows, columns, warps = _tile(widest, query.dtype)
    if mask is not None:
        mask = mask.expand(batch, heads, length, key.shape[2])
        mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
    strides = [stride for x in (query, key, mean, var, *results) for stride in x.stride()]
    with on(query.device):
        attention_kernel[(-(-length // rows), batch * heads)](
            query, key, mean, var, query if mask is None else mask, *results, *strides,
            *(mask.stride() if mask is not None else (0, 0, 0, 0)),
            scale, heads, heads // key.shape[1], length, key.shape[2], size, mean.shape[-1], var.shape[-1], asked,
            WIDTH=at_least_16(size), VALUES=at_least_16(mean.shape[-1]), SPREADS=at_least_16(var.shape[-1]),
            MASK=0 if mask is None else 1 if not mask.is_floating_point() else 2,
            ALIKE=int(mask is not None and mask.stride(2) == 0), CAUSAL=is_causal,
            EXACT=query.dtype == torch.float32, ROWS=rows, COLUMNS=columns, num_warps=warps,
        )  # fmt: skip
    return results


def _in_full_columns(var: Tensor, dtype: torch.dtype) -> Tensor:
    """A few columns that all heads share, in a tensor of as many as a tile reads at once; what the others hold does not
    matter, they do not leave.
    """
    batch, _, length, width = var.shape
    if width >= FEWEST or var.stride(1) or batch * length <= FEW:
        return var
    shared = var.new_empty((batch, 1, length, FEWEST), dtype=dtype)
    shared[..., :width] = var[:, :1]
    return shared.expand(-1, var.shape[1], -1, -1)


@functools.cache
def _tile(width: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Queries and keys at a time, and warps."""
    if dtype == torch.float32:
        return (64, 32, 4) if width <= 64 else (32, 32, 4) if width <= 128 else (16, 16, 4)
    return (128, 32, 4) if width <= 64 else (64, 32, 4) if width <= 128 else (32, 32, 4)


attend = registered("attention", reference, _launch, _fits, _outline)
