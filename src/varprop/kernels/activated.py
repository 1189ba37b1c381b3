"""A pointwise rule and the variances of the layer behind it, where these are products of 8-bit numbers.

The rule's own variances are turned into 8 bits where they are computed, and never written.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from varprop.kernels import eight_bits, emit
from varprop.kernels.launch import Launcher
from varprop.kernels.pointwise import BODIES
from varprop.kernels.recompute import call_of, recomputed

BLOCKS = 1024, 512, 256  # entries of a row at once
MOST = 4  # of them in registers
WARPS = 8


def reference(
    mean: Tensor,
    var: Tensor,
    log_alpha: Tensor,
    weights: Tensor,
    rows: Tensor,
    columns: Tensor,
    bias: Tensor | None,
    key: str,
) -> tuple[Tensor, Tensor]:
    """One after the other."""
    if torch.compiler.is_exporting():
        first, second = BODIES[key].forward.graph(mean, var * log_alpha.exp())
    else:
        first, second = torch.ops.varprop.pointwise(mean, var, log_alpha, key)
    return first, eight_bits.spread(first, second, weights, rows, columns, bias)


@torch.library.custom_op("varprop::activated_spread", mutates_args=())
def activated_spread(
    mean: Tensor,
    var: Tensor,
    log_alpha: Tensor,
    weights: Tensor,
    rows: Tensor,
    columns: Tensor,
    bias: Tensor | None,
    key: str,
) -> tuple[Tensor, Tensor]:
    """The means y of a pointwise function, and Σy E[W²]ᵀ + μy² Σ_Wᵀ + Σ_b of packed weights; ``key`` names the rule."""
    return _compute(mean, var, log_alpha, weights, rows, columns, bias, key)


def _compute(*arguments: Any) -> tuple[Tensor, Tensor]:
    mean, var = arguments[:2]
    fits = eight_bits.suits(mean) and mean.shape == var.shape and var.dtype == mean.dtype
    return (_launch(*arguments) if fits else None) or reference(*arguments)


@activated_spread.register_fake
def _(mean: Tensor, var: Tensor, log_alpha: Tensor, weights: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return mean.new_empty(mean.shape), mean.new_empty((*mean.shape[:-1], weights.shape[0]))


recomputed(activated_spread, reference)


spread_activated = call_of(torch.ops.varprop.activated_spread, _compute, reference)


def _launch(
    mean: Tensor, var: Tensor, log_alpha: Tensor, weights: Tensor, rows: Tensor, columns: Tensor, *rest: Any
) -> tuple[Tensor, Tensor] | None:
    bias, key = rest
    size = mean.shape[-1]
    block = min(BLOCKS, key=lambda each: -(-size // each) * each)
    if -(-size // block) > MOST:
        return None
    first, numbers = mean.new_empty(mean.shape), eight_bits.Numbers.empty(mean)
    arguments = mean.contiguous(), var.contiguous(), log_alpha, columns, first, *numbers, size
    launcher = _launcher(key, -(-size // block))
    done = launcher.launch((len(numbers.scales),), arguments, numbers, BLOCK=block, num_warps=WARPS)
    return None if done is None else (first, eight_bits.multiply(done, weights, rows, bias, mean))


@functools.cache
def _launcher(key: str, blocks: int) -> Launcher:
    return Launcher(lambda: emit.emit_spread(BODIES[key].forward.graph, blocks, eight_bits.LARGEST, eight_bits.TINY))
