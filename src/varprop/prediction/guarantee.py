"""The threshold of largest coverage whose true risk is at most r with probability 1 − δ, for any number of examples.

Let R(A) be the true risk of answering the set A of inputs, and p(k, m) a bound on the probability of k or fewer
errors in m independent examples whose risk is at least r; a set passes at level α if p ≤ α. Testing many thresholds
on the same data and taking the best would void the guarantee. Instead:

One walk starts at a rank m, fixed beforehand, with level α. Ties are broken at random. Let u be the (m + 1)-th largest
confidence. The walk tests {confidence > u}, then adds the next example, and the next, and stops at the first set that
does not pass. It may choose any of the sets after the first and before the stop; it takes the largest that splits no
group of equal confidences. The chosen risk exceeds r with probability at most α:

1. Given u, the m examples above it are independent draws from confidence > u. If R(confidence > u) > r, the first test
   passes with probability at most α.
2. Otherwise, let B = {confidence ≥ b} be where R first comes to exceed r below u. To end at too large a risk the walk
   must pass at B. Let A be where R, above u, last came down to r; A is empty if there is none. With ties broken R is
   continuous: R(A) = R(B) = r. Which A and B it is depends on u only through how many examples lie in each: at most m
   in A, more than m in B. Given both numbers, the examples in A and in B outside of A are independent, with risk r
   either way: B passes with probability at most α.

Nothing is assumed of how the risk depends on the confidence, and ties may be as many as they like.

No single start suits all: early ones allow no error, late ones miss small coverages. So there are several walks, and
their levels add up to δ. They start where 0, 2, 6, 14, … errors just pass, each with 0.3 of the level that is left; the
last one, with the rest, tests only the set of all inputs, and may choose it. The choice of largest coverage counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from varprop.errors import GuaranteeError
from varprop.metrics import inputs
from varprop.metrics.ranking import Ranking, rank

Walk = tuple[int, float]
"""Rank to start at, and level."""
SHARE = 0.3
"""Of the level that is left, for the next walk. Any fraction is valid. Larger ones favour early starts: they cover
slightly more where the risk falls with the confidence, and less where the most confident are wrong more often."""


@dataclass(frozen=True)
class Guarantee:
    """With probability ``level`` the true risk of answering if confidence ≥ ``threshold`` is at most ``risk``.

    The probability is over the draw of the examples. They must be new to model and calibration, and drawn like what
    is to come. ``threshold`` is the lowest confidence that is answered; −inf answers everything.
    """

    threshold: float
    risk: float
    level: float
    coverage: float
    """Fraction of the examples that are answered: an estimate of the coverage to come."""
    empirical_risk: float
    """1 − mean correctness of the answered."""
    bound: float
    """Upper confidence bound on the risk from the test that the answered passed: at most ``risk``."""
    answered: int
    examples: int


def guarantee(confidence: Tensor, correctness: Tensor, risk: float, level: float = 0.95) -> Guarantee:
    """The largest coverage at which a risk of at most ``risk`` is certain with probability ``level``.

    ``confidence`` [N] is any finite number; ``correctness`` [N] lies in [0, 1]. If it is 0 or 1, the bound is the exact
    binomial tail (Clopper-Pearson), otherwise the smaller of Hoeffding's, in its KL form, and Bentkus'. Equal
    confidences are answered together or not at all. Raises ``GuaranteeError`` if nothing can be promised.
    """
    risk, level = inputs.open_fraction("risk", risk), inputs.open_fraction("level", level)
    confidence, correctness = inputs.scored(confidence, correctness)
    inputs.some(confidence)
    confidence, errors = confidence.cpu(), 1 - correctness.cpu().double()
    # Seen soft values decide on the bound, not possible ones: rarer ones than 1 in N cannot matter.
    soft = bool(((errors > 0) & (errors < 1)).any())
    ranking = rank(confidence, errors)
    tails = _tails(errors[_order(confidence, errors)], risk, soft)
    plan = walks(len(confidence), risk, 1 - level, soft)
    answered, alpha = max(((_choice(tails, ranking.answered, walk), walk[1]) for walk in plan), key=lambda x: x[0])
    if not answered:
        raise GuaranteeError(_refusal(plan, ranking, risk, level, soft))
    last = int((ranking.answered < answered).sum())
    total = float(ranking.total[last])
    return Guarantee(
        threshold=float(ranking.threshold[last]) if answered < len(confidence) else -math.inf,
        risk=risk,
        level=level,
        coverage=answered / len(confidence),
        empirical_risk=total / answered,
        bound=min(risk, upper_bound(total, answered, alpha, soft)),  # it is found up to rounding
        answered=answered,
        examples=len(confidence),
    )


def _order(confidence: Tensor, errors: Tensor) -> Tensor:
    """By falling confidence, ties in random order: the same for the same examples, in whatever order they come."""
    order = errors.argsort(stable=True)
    order = order[confidence[order].argsort(stable=True)]
    order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(0))]
    return order[confidence[order].argsort(descending=True, stable=True)]


def _choice(tails: Tensor, ends: Tensor, walk: Walk) -> int:
    """How many examples a walk answers: the last end of a group before the first test that fails; 0 if there is none.

    ``tails`` has an entry per example, ``ends`` the number of examples down to the end of each group.
    """
    start, alpha = walk
    failed = (tails[start - 1 :] > alpha).nonzero()
    passed = start - 1 + int(failed[0]) if len(failed) else len(tails)
    # At the start itself a group may end, too, but the set tested holds a part of the next group then: see above.
    whole = ends[((ends > start) | (ends == len(tails))) & (ends <= passed)]
    return int(whole[-1]) if len(whole) else 0


@lru_cache(maxsize=64)
def walks(examples: int, risk: float, delta: float, soft: bool) -> tuple[Walk, ...]:
    """Where walks start and at which level: known before the data are."""
    found: list[Walk] = []
    errors, left = 0, delta
    while tail(errors, examples - 1, risk, soft) <= (alpha := SHARE * left):
        low, high = errors, examples - 1  # the tail falls with more examples at as many errors
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if tail(errors, middle, risk, soft) <= alpha else (middle, high)
        found.append((high, alpha))
        errors, left = 2 * errors + 2, left - alpha
    return (*found, (examples, left))


@lru_cache(maxsize=1024)
def upper_bound(errors: float, examples: int, alpha: float, soft: bool, precision: float = 1e-12) -> float:
    """The smallest risk at which ``errors`` or fewer in ``examples`` have a probability of at most α."""
    low = errors / examples
    high = min(1.0, low + math.sqrt(-math.log(alpha) / (2 * examples)))  # Hoeffding's plain bound, never below
    while high - low > precision * high:
        middle = (low + high) / 2
        low, high = (low, middle) if tail(errors, examples, middle, soft) <= alpha else (middle, high)
    return high


def tail(errors: float, examples: int, risk: float, soft: bool) -> float:
    """Bound on the probability of so few errors if their true rate is ``risk``.

    0-1:   P(Binomial(m, r) ≤ k), exact.
    soft:  min(exp(−m KL(k/m ‖ r)), e P(Binomial(m, r) ≤ ⌈k⌉))        (Hoeffding; Bentkus)
    """
    if errors >= examples:
        return 1.0
    whole = math.ceil(errors - 1e-9)
    # Beyond 40 standard deviations below the mean and the number of errors, terms do not count in float64.
    spread = 40 * math.sqrt(examples * risk * (1 - risk)) + 40
    lowest = max(0, math.floor(min(whole, examples * risk) - spread))
    terms = torch.arange(lowest, whole + 1, dtype=torch.float64)
    binomial = float(_log_probability(terms, torch.full_like(terms, examples), risk).exp().sum())
    if not soft:
        return min(1.0, binomial)
    mean = torch.tensor([errors / examples], dtype=torch.float64)
    return min(1.0, math.e * binomial, float(_hoeffding(mean, torch.tensor([examples]), risk)))


def _tails(errors: Tensor, risk: float, soft: bool) -> Tensor:
    """``tail`` for the first 1, 2, …, n of the errors, which are in rank order.

    P(B_m ≤ k) = P(B_{m−1} ≤ k) − r P(B_{m−1} = k)        P(B_m ≤ k) = P(B_m ≤ k − 1) + P(B_m = k)
    Along the ranking m grows by one and k by at most one, so a cumulative sum of probabilities gives all tails; its
    rounding error is about 1e-12 for a million examples.
    """
    total = errors.cumsum(0)
    whole = (total - 1e-9).ceil()
    size = torch.arange(1, len(errors) + 1, dtype=torch.float64)
    now = _log_probability(whole, size, risk).exp()
    before = torch.cat([now.new_ones(1), now[:-1]])
    grown = whole.diff(prepend=whole.new_zeros(1))
    binomial = (1 + (grown * now - risk * before).cumsum(0)).clamp(0, 1)
    if not soft:
        return binomial
    return torch.minimum(math.e * binomial, _hoeffding(total / size, size, risk)).clamp(max=1)


def _hoeffding(mean: Tensor, size: Tensor, risk: float) -> Tensor:
    """exp(−m KL(mean ‖ r)) where the mean error is below r, 1 elsewhere."""
    divergence = torch.special.xlogy(mean, mean / risk) + torch.special.xlogy(1 - mean, (1 - mean) / (1 - risk))
    return torch.where(mean < risk, (-size * divergence).exp(), 1)


def _log_probability(k: Tensor, m: Tensor, risk: float) -> Tensor:
    """log P(Binomial(m, r) = k) for m ≥ 1, without the cancellation between logarithms of large factorials (Loader).

    log √(m / 2π k(m − k)) + s(m) − s(k) − s(m − k) − d(k, m r) − d(m − k, m(1 − r)), with s the error of Stirling's
    formula and d(x, μ) = x log(x/μ) + μ − x.
    """
    inner = k.clamp(min=1).minimum((m - 1).clamp(min=1))
    rest = (m - inner).clamp(min=1)
    value = 0.5 * (m / (2 * math.pi * inner * rest)).log() + _stirling(m) - _stirling(inner) - _stirling(rest)
    value = value - _deviance(inner, m * risk) - _deviance(rest, m * (1 - risk))
    value = torch.where(k == 0, m * math.log1p(-risk), value)
    return torch.where(k == m, m * math.log(risk), value)


def _stirling(x: Tensor) -> Tensor:
    """log x! − log(√(2πx) (x/e)^x)."""
    small = x.clamp(max=16)
    exact = torch.lgamma(small + 1) - (small + 0.5) * small.log() + small - 0.5 * math.log(2 * math.pi)
    y = 1 / x.square()
    series = (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y / 1680))) / x
    return torch.where(x < 16, exact, series)


def _deviance(x: Tensor, mean: Tensor) -> Tensor:
    relative = (x - mean) / mean
    return mean * ((1 + relative) * relative.log1p() - relative)


def _refusal(plan: tuple[Walk, ...], ranking: Ranking, risk: float, level: float, soft: bool) -> str:
    """What could have been promised at best, at the group of equal confidences in which each walk starts."""
    found = []
    for start, alpha in plan:
        first = int((ranking.answered < start).sum())
        answered, errors = int(ranking.answered[first]), float(ranking.total[first])
        found.append((upper_bound(errors, answered, alpha, soft, precision=1e-4), errors, answered))
    bound, errors, answered = min(found)
    needed = math.ceil(math.log1p(-level) / math.log1p(-risk))
    return (
        f"no threshold keeps the risk at or below {risk:g} with probability {level:g}: the lowest bound is "
        f"{bound:.3g}, from {errors:.4g} errors in the {answered} most confident of {int(ranking.answered[-1])} "
        f"examples. At least {needed} examples without any error are needed: give more examples, allow a larger risk "
        "or lower the level"
    )
