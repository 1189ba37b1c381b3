"""Risk-coverage curves, reliability diagrams and operating points, from scores per example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from varprop.evaluation.results import POINTS, Scores
from varprop.metrics import risk_coverage_curve

BINS = 15


def percentiles(confidence: Any, correctness: Any) -> tuple[float, ...]:
    """Risk of the most confident 1, 2, … 100 % of the examples, to six digits.

    Summed errors grow in straight lines within a group of equal confidences: the average over all their orders.
    """
    coverage, risk, _ = curve(np.asarray(confidence), np.asarray(correctness))
    grid = np.arange(1, POINTS + 1) / POINTS
    errors = np.interp(grid, np.append(0, coverage), np.append(0, coverage * risk))
    return tuple(round(float(risk), 6) for risk in (errors / grid).clip(0, 1))


def curve(confidence: np.ndarray, correctness: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coverage, risk and threshold, one point per distinct confidence."""
    confidence, correctness = np.ascontiguousarray(confidence), np.ascontiguousarray(correctness)
    found = risk_coverage_curve(torch.from_numpy(confidence), torch.from_numpy(correctness))
    return found.coverage.numpy(), found.risk.numpy(), found.threshold.numpy()


@dataclass(frozen=True)
class Reliability:
    """Per bin of confidence, over all seeds together: mean confidence, accuracy, share of the examples."""

    confidence: np.ndarray
    accuracy: np.ndarray
    share: np.ndarray


def reliability(scores: Sequence[Scores], bins: int = BINS) -> Reliability:
    """Bins of equal width; an empty one has NaN for confidence and accuracy."""
    from scipy.stats import binned_statistic  # here, because it takes long to import

    claimed = np.concatenate([each["confidence"] for each in scores])
    right = np.concatenate([each["correctness"] for each in scores])
    # As the ECE does it: edges in the confidence's own dtype, 1 in the last bin.
    edges = (np.arange(bins + 1) / bins).astype(claimed.dtype)
    confidence, accuracy = binned_statistic(claimed, [claimed, right], bins=edges).statistic
    return Reliability(confidence, accuracy, share=np.histogram(claimed, edges)[0] / len(claimed))


@dataclass(frozen=True)
class Staircase:
    """Which threshold a risk budget buys: one step per threshold that is best for some budget.

    For a budget b, the last step with ``risk`` ≤ ``limit(b)`` has the largest held-out coverage; without one, b cannot
    be met. Steps have rising coverage and rising risk.
    """

    threshold: np.ndarray
    held_out_risk: np.ndarray
    held_out_coverage: np.ndarray
    answered: np.ndarray
    """How many test examples reach the threshold."""
    errors: np.ndarray
    """Their summed errors: a count, unless correctness is soft."""
    slack: float

    def limit(self, budget: float) -> float:
        """The budget with the slack of ``coverage_at_risk``: rounding must not refuse what meets it exactly."""
        return budget * (1 + 1e-9) + self.slack

    def at(self, budget: float) -> int | None:
        met = np.flatnonzero(self.held_out_risk <= self.limit(budget))
        return int(met[-1]) if len(met) else None


def staircase(scores: Scores) -> Staircase | None:
    """None without held-out scores."""
    if "held_out_confidence" not in scores:
        return None
    correctness = scores["held_out_correctness"]
    coverage, risk, threshold = curve(scores["held_out_confidence"], correctness)
    # From full coverage back, a smaller coverage is worth taking only at a lower risk than all larger ones have.
    lowest = np.minimum.accumulate(risk[::-1])[::-1]
    keep = np.append(risk[:-1] < lowest[1:], True)
    order = np.argsort(-scores["confidence"], kind="stable")
    errors = np.append(0, np.cumsum(1 - scores["correctness"][order]))
    # "-" turns a falling order into a rising one; ≥ the threshold includes equal confidences.
    threshold = threshold[keep].astype(scores["confidence"].dtype)
    answered = np.searchsorted(-scores["confidence"][order], -threshold, side="right")
    soft = bool(((correctness > 0) & (correctness < 1)).any())
    return Staircase(threshold, risk[keep], coverage[keep], answered, errors[answered], 2**-25 if soft else 0.0)
