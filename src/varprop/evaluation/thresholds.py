"""Thresholds for a risk that is given, found on held-out scores, and what they do on test scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from varprop.errors import GuaranteeError
from varprop.evaluation.arrays import Scores
from varprop.metrics import coverage_at_risk
from varprop.prediction.guarantee import guarantee

LEVEL = 0.95
"""The probability with which a certified risk holds."""


@dataclass(frozen=True)
class OperatingPoint:
    """The lowest confidence that is answered, and the test examples that reach it."""

    threshold: float
    answered: int
    errors: float
    """Summed: a count, unless correctness is soft."""

    @property
    def risk(self) -> float:
        return self.errors / self.answered if self.answered else 0.0


Finder = Callable[[Scores, float], OperatingPoint | None]
"""From scores and a risk to a threshold; None where there is none for that risk."""


def certify(scores: Scores, risk: float) -> OperatingPoint | None:
    """The threshold of ``vp.Selective``: with a probability of ``LEVEL`` the true risk is at most ``risk``.

    That holds for held-out examples that are new to network and calibration.
    """
    try:
        found = guarantee(*_held_out(scores), risk, level=LEVEL)
    except GuaranteeError:
        return None
    return _point(scores, found.threshold)


def meet(scores: Scores, risk: float) -> OperatingPoint | None:
    """The threshold of the largest held-out coverage whose own risk is at most ``risk``: half of the time, too low."""
    confidence, correctness = _held_out(scores)
    count = round(len(confidence) * float(coverage_at_risk(confidence, correctness, risk)))
    return _point(scores, float(confidence.sort().values[-count])) if count else None


def _held_out(scores: Scores) -> tuple[Tensor, Tensor]:
    confidence, correctness = (scores[f"held_out_{name}"] for name in ("confidence", "correctness"))
    return torch.tensor(confidence), torch.tensor(correctness)


def answered(scores: Scores, threshold: float) -> np.ndarray:
    """Which test examples are answered, in float64 as ``vp.Selective`` compares them."""
    return np.asarray(scores["confidence"].astype(np.float64) >= threshold)


def _point(scores: Scores, threshold: float) -> OperatingPoint:
    chosen = answered(scores, threshold)
    return OperatingPoint(threshold, int(chosen.sum()), float((1 - scores["correctness"][chosen]).sum()))
