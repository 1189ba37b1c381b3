"""Matrices that are not negative, as sums of outer products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

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
