"""Examples ranked by confidence, with equal confidences kept together."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Ranking(NamedTuple):
    """One entry per distinct confidence, the highest first."""

    threshold: Tensor  # the confidence itself, in its own dtype
    answered: Tensor  # how many examples have at least this confidence, int64
    total: Tensor  # what was summed over them


def rank(confidence: Tensor, values: Tensor) -> Ranking:
    """Sort by confidence, sum the values, and keep the sums at the end of each group of equal confidences."""
    threshold, order = confidence.sort(descending=True)
    total = values[order].cumsum(0)
    ends = torch.ones_like(threshold, dtype=torch.bool)
    ends[:-1] = threshold[1:] != threshold[:-1]
    last = ends.nonzero().squeeze(1)
    return Ranking(threshold[last], last + 1, total[last])


def group_sizes(ranking: Ranking) -> Tensor:
    return ranking.answered.diff(prepend=ranking.answered.new_zeros(1))


def spread(ranking: Ranking) -> Tensor:
    """A value per example, in rank order, where equal confidences share their mean.

    The expected sum over the first j of m tied examples, over all their orders, is j/m of the group's: cumulative
    sums of what is returned are expectations over all ways to break ties.
    """
    sizes = group_sizes(ranking)
    mean = ranking.total.diff(prepend=ranking.total.new_zeros(1)) / sizes
    return mean.repeat_interleave(sizes)
