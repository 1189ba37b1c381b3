"""Functions that models write out by hand and ATen has no op for; rules are keyed by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx


def rms_normalize(x: Tensor, dims: Sequence[int], eps: Any) -> Tensor:
    """x / √(mean x² + ε): RMSNorm and filter response norm without their affine part."""
    return x * torch.rsqrt(x.square().mean(list(dims), keepdim=True) + eps)


def unit_length(x: Tensor, dims: Sequence[int], inside: Any = 0.0, outside: Any = 0.0, least: Any = 0.0) -> Tensor:
    """x / max(√(Σ x² + inside) + outside, least): ``F.normalize`` and its like; at most one of the three is not 0."""
    length = (x.square().sum(list(dims), keepdim=True) + inside).sqrt() + outside
    return x / torch.clamp(length, min=least)


def standardize(x: Tensor, dims: Sequence[int], eps: Any) -> Tensor:
    """(x − x̄) / √(s² + ε): LayerNorm written out, without its affine part."""
    return rms_normalize(x - x.mean(list(dims), keepdim=True), dims, eps)


def residual_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x + W x + b: a residual connection around a single linear layer."""
    return x + torch.nn.functional.linear(x, weight, bias)


def quick_gelu(x: Tensor) -> Tensor:
    """x σ(1.702 x), CLIP's activation."""
    return x * torch.sigmoid(1.702 * x)


def elementwise(body: fx.GraphModule, x: Tensor, *constants: Tensor) -> Tensor:
    """f(x): a chain of elementwise ops with one random input, as the one function it is."""
    return body(x, *constants)


def grouped_matmul(op: Callable[..., Tensor], x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """Rows of x times the matrix of their group, as ``op`` does it: mixtures of experts. Groups end at the offsets."""
    return op(x, weight, offsets)


def spread(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> Tensor:
    """``as_strided`` of a tensor that is contiguous: windows that overlap."""
    return x.contiguous().as_strided(size, stride, offset)


def modulus(z: Tensor) -> Tensor:
    """|a + ib| = √(a² + b²)."""
    return z.abs()


def argument(z: Tensor) -> Tensor:
    """The angle of a + ib."""
    return z.angle()
