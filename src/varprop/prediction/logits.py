"""What a link accepts: logits in float32 at least, finite, and not probabilities already."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from varprop.errors import OutputError
from varprop.moments import Moments

Logits = TypeVar("Logits", Tensor, Moments)


def widened(logits: Moments) -> Moments:
    """In float32 at least."""
    return Moments(*(x.float() if torch.finfo(x.dtype).bits < 32 else x for x in logits))


def checked(logits: Moments, refuse_squashed: Callable[[Tensor], None] | None = None) -> Moments:
    """In float32 at least, and refused if there are no probabilities to be had from it.

    One look tells whether all is finite, and whether ``refuse_squashed`` has to look again.
    """
    mean, var = widened(logits)
    if torch.compiler.is_compiling() or not mean.numel():
        return Moments(mean, var)
    low, high, *ends = torch.stack([x for part in (mean, var) for x in part.detach().aminmax()]).tolist()
    if refuse_squashed and 0 <= low <= high <= 1:
        refuse_squashed(mean)
    if not all(map(math.isfinite, (low, high, *ends))):
        rows = (~(mean.isfinite() & var.isfinite())).reshape(len(mean), -1).any(1) if mean.ndim else mean
        raise OutputError(f"the logits of {int(rows.sum())} of {len(mean)} examples are not finite (NaN or inf)")
    return Moments(mean, var)


def at_least_two(logits: Logits) -> Logits:
    if not logits.shape or logits.shape[-1] < 2:
        raise OutputError(
            f"a softmax needs two classes, the logits have shape {list(logits.shape)}: use links.Sigmoid()"
        )
    return logits
