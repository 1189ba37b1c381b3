"""The exact variance of a result that is affine in each of its random arguments, by differences."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.rules.cases import Case
from varprop.moments import Moments, is_random


def exact_variances(case: Case, wanted: list[int]) -> list[Tensor]:
    """Of the results of the op itself, at the places ``wanted``."""

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        rest = iter(values)
        results = case.change(lambda leaf: next(rest) if is_random(leaf) else leaf).run()
        return tuple(results[place] for place in wanted)

    return list(_variance(function, case.random()))


def _variance(function: Callable[..., tuple[Tensor, ...]], blocks: list[Moments]) -> tuple[Tensor, ...]:
    """Var[f(A, …)] = Var[f(μ_A, …)] + Σ_i v_i (E[∂f/∂A_i]² + Var[∂f/∂A_i]), blocks independent, f affine in each."""
    if not blocks:
        return tuple(torch.zeros_like(part) for part in function())
    first, *rest = blocks
    size = first.mean.numel()

    def contribution(unit: Tensor) -> tuple[Tensor, ...]:
        def slope(*values: Tensor) -> tuple[Tensor, ...]:
            ends = (function(first.mean + sign * unit, *values) for sign in (0.5, -0.5))
            return tuple(after - before for after, before in zip(*ends, strict=True))

        at_mean = slope(*(block.mean for block in rest))
        return tuple(a * a + b for a, b in zip(at_mean, _variance(slope, rest), strict=True))

    units = torch.eye(size, dtype=torch.float64).reshape(size, *first.mean.shape)
    squares = torch.vmap(contribution)(units)
    of_rest = _variance(lambda *values: function(first.mean, *values), rest)
    return tuple(a + torch.tensordot(first.var.flatten(), b, 1) for a, b in zip(of_rest, squares, strict=True))
