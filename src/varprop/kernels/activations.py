"""A pointwise rule between factored layers, in one pass: its variances are neither read nor written.

What comes in are a few numbers of each token times fixed vectors, what leaves are the sums that the next layer wants.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from varprop.kernels import codegen
from varprop.kernels.custom_op import registered
from varprop.kernels.factored_ops import contract_reference, counts_of, numbers_of
from varprop.kernels.launch import Launcher, tile, usable
from varprop.kernels.pointwise import RULES

TILE = 4, 128, 2  # rows, columns, warps
MOST_TERMS = 16


def reference(
    mean: Tensor,
    numbers: Tensor,
    log_alpha: Tensor,
    vectors: Tensor,
    peaks: Tensor,
    by_var: Tensor | None,
    by_square: Tensor | None,
    ones: bool,
    key: str,
) -> tuple[Tensor, Tensor]:
    """The moments y of a pointwise function of x ~ N(mean, α Σ_k numbers[k] vectors[k]): μ_y and Σ_y, or in its place
    what ``tokens.contract`` makes of them. ``peaks`` are the largest entries of the vectors, ``key`` names the rule.

    Multiplied out, the rule, summed up.
    """
    wide = torch.promote_types(mean.dtype, torch.float32)
    var = F.linear(numbers.to(wide), vectors.T.to(wide)).to(mean.dtype)
    if torch.compiler.is_exporting():
        first, second = RULES[key].graph(mean, var * log_alpha.exp())
    else:
        first, second = torch.ops.varprop.pointwise(mean, var, log_alpha, key)
    if by_var is None and by_square is None:
        return first, second
    return first, contract_reference(first, second, by_var, by_square, ones)


def _fits(mean: Tensor, numbers: Tensor, *rest: Any) -> bool:
    tensors = mean, numbers, *(x for x in rest if isinstance(x, Tensor))
    return mean.numel() > 0 and usable(*tensors) and numbers.shape[-1] <= MOST_TERMS


def _outline(mean: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, by_var, by_square, ones, _ = rest
    first = mean.new_empty(mean.shape)
    if by_var is None and by_square is None:
        return first, mean.new_empty(mean.shape)
    return first, numbers_of(mean, sum(counts_of(by_var, by_square)) + ones)


@functools.cache
def _launcher(key: str, terms: int, by_var: int, by_square: int, ones: bool) -> Launcher:
    return Launcher(lambda: codegen.emit_tokens(RULES[key].graph, terms, by_var, by_square, ones))


def _launch(
    mean: Tensor, numbers: Tensor, log_alpha: Tensor, vectors: Tensor, peaks: Tensor, *rest: Any
) -> tuple[Tensor, Tensor] | None:
    by_var, by_square, ones, key = rest
    results = _outline(mean, *rest)
    counts = counts_of(by_var, by_square)
    given = [mean if x is None else x.contiguous() for x in (by_var, by_square)]
    size = mean.shape[-1]
    tokens = mean.numel() // size
    inputs = mean.contiguous(), numbers.contiguous(), log_alpha, vectors.contiguous(), peaks
    arguments = *inputs, *given, *results, tokens, size
    launcher = _launcher(key, len(vectors), *counts, ones)
    rows, block, warps = tile(tokens, TILE)
    return launcher.launch((-(-tokens // rows),), arguments, results, ROWS=rows, BLOCK=block, num_warps=warps)


activate = registered("activation", reference, _launch, _fits, _outline)
