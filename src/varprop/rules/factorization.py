"""Variances as sums of products: how a matrix is factored, and the algebra of ``Factored`` moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.moments import Factored, multiplied_out

ROUNDS = 100  # of the fit of more than one product
LEAST = 1e-30


def factor(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """``left`` [rank, m] and ``right`` [rank, n], not negative, with Σ_k left[k] ⊗ right[k] near the matrix.

    Near by the Kullback–Leibler divergence, so that all sums over rows and over columns are kept: for rank 1 that is
    the product of the two divided by the total. More are found by multiplicative updates (Lee and Seung, 2001).
    """
    wide = matrix.float() if torch.finfo(matrix.dtype).bits < 32 else matrix
    if rank == 1:
        left = wide.sum(1)[None]
        right = wide.sum(0)[None] / left.sum().clamp_min(LEAST)
    else:
        left, right = torch.ops.varprop.factor_matrix(wide, rank).split([*wide.shape], 1)
    return left.to(matrix.dtype), right.to(matrix.dtype)


@torch.library.custom_op("varprop::factor_matrix", mutates_args=())
def factor_matrix(matrix: Tensor, rank: int) -> Tensor:
    """[left, right], joined. In the beginning each product has the columns that are most alike."""
    rows, columns = matrix.sum(1), matrix.sum(0) / matrix.sum().clamp_min(LEAST)
    departure = matrix / (rows[:, None] * columns).clamp_min(LEAST) - 1
    leaning = torch.linalg.svd(departure, full_matrices=False)[2][0]
    place = leaning.argsort().argsort() * rank // len(leaning)
    right = (0.1 + F.one_hot(place, rank).T.to(matrix.dtype)) * columns
    left = rows.expand(rank, -1) / rank
    for _ in range(ROUNDS):
        for _ in range(2):  # each in its turn
            ratio = matrix / (left.T @ right).clamp_min(LEAST)
            left = left * (right @ ratio.T) / right.sum(1, keepdim=True).clamp_min(LEAST)
            left, right, matrix = right, left, matrix.T
    return torch.cat([left, right], 1)


@factor_matrix.register_fake
def _(matrix: Tensor, rank: int) -> Tensor:
    return matrix.new_empty(rank, matrix.shape[0] + matrix.shape[1])


def misfit(matrix: Tensor, rank: int) -> float:
    """How far the products are from the matrix, relative to its size (root mean squares)."""
    left, right = factor(matrix, rank)
    return float((left.T @ right - matrix).norm() / matrix.norm().clamp_min(LEAST))


def is_one(size: Any) -> bool:
    """A size that is not free and is 1."""
    return isinstance(size, int) and size == 1


def varies(x: Tensor, dim: int) -> bool:
    return not is_one(x.shape[dim])


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Along k, the others broadcast."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part.shape[1:] for part in parts), strict=True)
    sizes = [next((n for n in column if not is_one(n)), 1) for column in columns]

    def broadcast(part: Tensor) -> Tensor:
        lacks = any(is_one(own) and not is_one(n) for own, n in zip(part.shape[1:], sizes, strict=True))
        return part.expand(part.shape[0], *sizes) if lacks else part  # each op that is traced takes its time

    return torch.cat([broadcast(part) for part in parts])


def broadened(x: Tensor, ndim: int) -> Tensor:
    return x.reshape((1,) * (ndim - x.ndim) + tuple(x.shape))


def as_terms(x: Any, like: Tensor) -> Factored:
    """Moments, which will be broadcast to ``like``: a parameter that is repeated becomes a product."""
    if isinstance(x, Factored):
        if x.mean.ndim == like.ndim:
            return x
        lacking = (None,) * (like.ndim - x.mean.ndim)
        rest = None if x.rest is None else x.rest[lacking]
        return Factored(x.mean, x.coefficients[:, *lacking], x.vectors[:, *lacking], rest)
    var = broadened(x.var, like.ndim)
    spanned = [d for d in range(like.ndim) if varies(var, d)]
    none = var.new_zeros([0] + [1] * like.ndim)
    if all(varies(var, d) or not varies(like, d) for d in range(like.ndim)):
        return Factored(x.mean, none, none, var)
    if len(spanned) < 2:
        return Factored(x.mean, var.new_ones([1] * (like.ndim + 1)), var[None])
    last = spanned[-1]
    left, right = factor(var.movedim(last, -1).reshape(-1, var.shape[last]), 1)
    rows, columns = ([1 if (d == last) == own else n for d, n in enumerate(var.shape)] for own in (True, False))
    return Factored(x.mean, left.reshape(1, *rows), right.reshape(1, *columns))


def tokens_of(x: Factored) -> tuple[Tensor, Tensor] | None:
    """Numbers of each token [..., k] and vectors [k, features]; None if the variance is not made of these."""
    if x.rest is not None or varies(x.coefficients, -1) or any(varies(x.vectors, d) for d in range(1, x.mean.ndim)):
        return None
    numbers = x.coefficients[..., 0].movedim(0, -1)
    return numbers.expand(*x.mean.shape[:-1], -1), x.vectors.reshape(x.vectors.shape[0], -1)


def products_of(x: Factored) -> tuple[bool, Any]:
    """Mean, numbers, vectors and their largest entries; or, and False, the moments multiplied out."""
    found = tokens_of(x)
    return (False, multiplied_out(x)) if found is None else (True, (x.mean, *found, found[1].amax(1)))
