"""A threshold on the confidence whose true risk is at most r with probability 1 − δ, for any number of examples.

Learn then Test (Angelopoulos, Bates, Candès, Jordan, Lei: arXiv 2110.01052), with split fixed-sequence testing:

1. A fifth of the examples, taken at random, fixes a sequence of thresholds λ: the confidences found there in falling
   order, from the one where a test on the other examples promises the smallest p-value, and last −∞.
2. On the other examples each λ in turn is tested for the hypothesis P(wrong | confidence ≥ λ) > r at level δ. The last
   λ before the first whose p-value exceeds δ is chosen.

To choose a λ of larger risk, the first true hypothesis of the sequence must be rejected. Given the first part that is
one fixed hypothesis, so this happens with probability at most δ, however many are tested and however the risk depends
on the confidence. A λ answers equal confidences together or not at all, in the tests as in use: ties need no more care.

The p-value: given which m examples are answered, their errors are independent draws of mean P(wrong | confidence ≥ λ).
For k errors in total it is

    0-1:   P(Binomial(m, r) ≤ k), exact
    soft:  min(exp(−m KL(k/m ‖ r)), e P(Binomial(m, r) ≤ ⌈k⌉))

the latter by the inequalities of Hoeffding and Bentkus (Bates, Angelopoulos, Lei, Malik, Jordan: arXiv 2101.02703).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from varprop.errors import GuaranteeError
from varprop.metrics import inputs

LEARN = 0.2
"""Fraction of the examples that fixes the sequence. Less leaves more to test, more finds a better start."""


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
    """Upper confidence bound on the risk from the test that the threshold passed: at most ``risk``."""
    answered: int
    examples: int


def guarantee(confidence: Tensor, correctness: Tensor, risk: float, level: float = 0.95) -> Guarantee:
    """The largest coverage found at which the true risk is at most ``risk`` with probability ``level``.

    ``confidence`` [N] is any finite number; ``correctness`` [N] lies in [0, 1]. The examples may come in any order that
    does not depend on them. Raises ``GuaranteeError`` if nothing can be promised.
    """
    risk, level = inputs.open_fraction("risk", risk), inputs.open_fraction("level", level)
    confidence, correctness = inputs.scored(confidence, correctness)
    inputs.nonempty(confidence)
    scores, errors = confidence.double().cpu().numpy(), 1 - correctness.double().cpu().numpy()
    order = np.random.default_rng(0).permutation(len(scores))
    first, rest = np.split(order, [math.ceil(LEARN * len(order))])
    soft = bool(((errors[first] > 0) & (errors[first] < 1)).any())
    counted = errors if soft else np.ceil(errors)  # a soft error that the first part does not know counts in full
    thresholds = _sequence(scores[first], counted[first], len(rest), risk, soft)
    answered, wrong = _answered(scores[rest], counted[rest], thresholds)
    failed = p_value(wrong, answered, risk, soft) > 1 - level
    passed = int(failed.argmax()) if failed.any() else len(failed)
    last = max(0, passed - 1)
    bound = upper_bound(float(wrong[last]), int(answered[last]), 1 - level, soft)
    if not passed:
        raise GuaranteeError(
            f"no threshold keeps the risk at or below {risk:g} with probability {level:g}: the bound is {bound:.3g}, "
            f"from {wrong[0]:.4g} errors in the {answered[0]} most confident of {len(rest)} examples tested. Even "
            f"without any error at least {_needed(risk, level)} examples must be given: give more, allow a larger risk "
            "or lower the level"
        )
    chosen = scores >= thresholds[last]
    return Guarantee(
        threshold=float(thresholds[last]),
        risk=risk,
        level=level,
        coverage=float(chosen.mean()),
        empirical_risk=float(errors[chosen].mean()),
        bound=min(risk, bound),  # it is found up to rounding
        answered=int(chosen.sum()),
        examples=len(scores),
    )


def _sequence(scores: np.ndarray, errors: np.ndarray, tested: int, risk: float, soft: bool) -> np.ndarray:
    """The thresholds, from where ``tested`` examples like these would have the smallest p-value.

    Half an error is added to those seen: with none among a few, the p-value would promise too much.
    """
    thresholds = np.append(np.unique(scores)[::-1], -np.inf)
    answered, wrong = _answered(scores, errors, thresholds)
    growth = tested / len(scores)
    expected = p_value(np.ceil(growth * (wrong + 0.5)), np.round(growth * answered), risk, soft)
    return thresholds[expected.argmin() :]


def _answered(scores: np.ndarray, errors: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many examples each threshold answers, and their errors."""
    order = np.argsort(-scores, kind="stable")
    count = np.searchsorted(-scores[order], -thresholds, side="right")
    return count, np.append(0.0, errors[order].cumsum())[count]


def p_value(errors: Any, examples: Any, risk: float, soft: bool) -> Any:
    """Bound on the probability of this few errors or fewer if their true rate is ``risk`` or more."""
    from scipy.special import xlogy  # here, because it takes long to import
    from scipy.stats import binom

    errors, examples = np.asarray(errors, float), np.asarray(examples, float)
    tail = binom.cdf(np.ceil(errors - 1e-9), examples, risk)
    if not soft:
        return tail
    mean = np.minimum(1, errors / np.maximum(1, examples))
    divergence = xlogy(mean, mean / risk) + xlogy(1 - mean, (1 - mean) / (1 - risk))
    return np.minimum(math.e * tail, np.where(mean < risk, np.exp(-examples * divergence), 1))


def upper_bound(errors: float, examples: int, alpha: float, soft: bool) -> float:
    """The smallest risk at which the p-value is at most α: for 0-1 errors the bound of Clopper and Pearson."""
    from scipy.optimize import brentq

    if errors >= examples:
        return 1.0
    return float(brentq(lambda risk: p_value(errors, examples, risk, soft) - alpha, 1e-15, 1 - 1e-15))


def _needed(risk: float, level: float) -> int:
    """The fewest examples at which a test without errors can pass."""
    tested = math.ceil(math.log1p(-level) / math.log1p(-risk))
    return next(given for given in itertools.count(tested) if given - math.ceil(LEARN * given) >= tested)
