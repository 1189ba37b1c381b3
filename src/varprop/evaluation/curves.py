"""Risk-coverage curves and reliability diagrams, from scores per example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from varprop.evaluation.arrays import Scores
from varprop.evaluation.results import POINTS
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
