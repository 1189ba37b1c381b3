"""Answering only when confident: risk, coverage and effective reliability.

Each example has a confidence, any finite number, and a correctness in [0, 1]. It is answered if its confidence is at
least the threshold. Risk is 1 − mean correctness of the answered; coverage is the fraction that is answered.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from varprop.metrics import inputs


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


class RiskCoverageCurve(NamedTuple):
    """One point per distinct confidence, from the highest threshold to full coverage."""

    coverage: Tensor
    risk: Tensor
    threshold: Tensor


def risk_coverage_curve(confidence: Tensor, correctness: Tensor) -> RiskCoverageCurve:
    """Coverage and risk at every threshold that answers a different set of examples."""
    confidence, correctness = inputs.nonempty(*inputs.scored(confidence, correctness))
    ranking = rank(confidence, 1 - correctness)
    count = ranking.answered.to(correctness.dtype)
    return RiskCoverageCurve(count / len(confidence), ranking.total / count, ranking.threshold)


def aurc(confidence: Tensor, correctness: Tensor) -> Tensor:
    """Area under the risk-coverage curve: the mean over k = 1 … N of the risk of the k most confident examples.

    Ties are averaged over all their orders: within a group of m that follows k examples with summed error E, the
    expected risk of the first k + j is (E + j ē)/(k + j), with ē the group's mean error.
    """
    confidence, correctness = inputs.nonempty(*inputs.scored(confidence, correctness))
    errors = spread(rank(confidence, 1 - correctness)).cumsum(0)
    k = torch.arange(1, len(errors) + 1, dtype=errors.dtype, device=errors.device)
    return (errors / k).mean()


def coverage_at_risk(confidence: Tensor, correctness: Tensor, risk: float) -> Tensor:
    """C@R: the largest coverage whose risk is at most ``risk``; 0 if there is none. Ties are never split.

    Rounding must not turn 29 errors in 100 into more than 0.29, so summed errors are compared with risk · answered
    plus a slack: one part in 10⁹ and, if any correctness is soft, 2⁻²⁵ per example, as float32 rounds 0.9. With
    errors of 0 or 1 that decides exactly for a risk of up to three decimals and 10⁸ examples.
    """
    risk = inputs.open_fraction("risk", risk)
    confidence, correctness = inputs.nonempty(*inputs.scored(confidence, correctness))
    ranking = rank(confidence, 1 - correctness)
    soft = bool(((correctness > 0) & (correctness < 1)).any())
    limit = risk * (1 + 1e-9) + (2**-25 if soft else 0)
    # A float times whole numbers would be float32.
    kept = ranking.total <= limit * ranking.answered.to(correctness.dtype)
    # Counts grow along the ranking: the largest one kept is that of the last group kept.
    return (ranking.answered * kept).max().to(correctness.dtype) / len(confidence)


def gains(correctness: Tensor, cost: float) -> Tensor:
    """What answering brings: the correctness, or −cost where it is 0."""
    return torch.where(correctness > 0, correctness, -cost)


def effective_reliability(confidence: Tensor, correctness: Tensor, cost: float, threshold: float) -> Tensor:
    """Φ_c: the mean of the correctness if answered and above 0, −c if answered and 0, and 0 if not answered.

    The threshold ``inf`` answers nothing. Choose it with ``best_threshold`` on validation data. It is rounded to the
    confidence's dtype: 0.9 answers a float32 confidence of 0.9. Rounding is monotone, so nothing that reached the
    threshold before it was rounded is left out.
    """
    return inputs.mean(reliability_of_each(confidence, correctness, cost, threshold))


def reliability_of_each(confidence: Tensor, correctness: Tensor, cost: float, threshold: float) -> Tensor:
    cost, threshold = inputs.non_negative("cost", cost), inputs.number("threshold", threshold)
    confidence, correctness = inputs.scored(confidence, correctness)
    lowest = torch.tensor(threshold, dtype=torch.float64).to(confidence.dtype).to(confidence.device)
    return torch.where(confidence >= lowest, gains(correctness, cost), 0)


def best_threshold(confidence: Tensor, correctness: Tensor, cost: float) -> float:
    """The threshold that maximises Φ_c on these examples; ``inf``, answering nothing, if every other one loses.

    Ties go to the larger coverage. Values of Φ_c within 10⁻¹² (1 + c) of the best are ties: they differ by rounding.
    """
    cost = inputs.non_negative("cost", cost)
    confidence, correctness = inputs.nonempty(*inputs.scored(confidence, correctness))
    ranking = rank(confidence, gains(correctness, cost))
    reliability = ranking.total / len(confidence)
    best = reliability.max().clamp(min=0)
    tied = (reliability >= best - 1e-12 * (1 + cost)).nonzero().squeeze(1)
    return float(ranking.threshold[tied[-1]]) if len(tied) else math.inf
