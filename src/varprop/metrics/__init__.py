"""Metrics of selective prediction and calibration: plain functions, and the same as torchmetrics.

The classes are loaded when first asked for: importing torchmetrics imports scipy and transformers where they are
installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from varprop.metrics.calibration import ace, ece
from varprop.metrics.correctness import accuracy, best_f1_threshold, f1, vqa_accuracy
from varprop.metrics.proper import bce, brier, crps, gaussian_nll, mpiw, nll, picp, rmse
from varprop.metrics.risk import (
    RiskCoverageCurve,
    aurc,
    best_threshold,
    coverage_at_risk,
    effective_reliability,
    risk_coverage_curve,
)

if TYPE_CHECKING:
    from varprop.metrics.accumulators import (
        ACE,
        AURC,
        BCE,
        CRPS,
        ECE,
        NLL,
        Accuracy,
        Brier,
        CoverageAtRisk,
        EffectiveReliability,
        GaussianNLL,
    )

__all__ = [
    "ACE",
    "AURC",
    "BCE",
    "CRPS",
    "ECE",
    "NLL",
    "Accuracy",
    "Brier",
    "CoverageAtRisk",
    "EffectiveReliability",
    "GaussianNLL",
    "RiskCoverageCurve",
    "accuracy",
    "ace",
    "aurc",
    "bce",
    "best_f1_threshold",
    "best_threshold",
    "brier",
    "coverage_at_risk",
    "crps",
    "ece",
    "effective_reliability",
    "f1",
    "gaussian_nll",
    "mpiw",
    "nll",
    "picp",
    "risk_coverage_curve",
    "rmse",
    "vqa_accuracy",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from varprop.metrics import accumulators

        return getattr(accumulators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
