"""What an evaluation has found: scores of every example, the metrics that follow, and how certain those are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor

from varprop import metrics
from varprop.errors import InputError
from varprop.prediction.prediction import pandas

RISKS = {"c@0.5": 0.005, "c@1": 0.01, "c@2": 0.02, "c@5": 0.05}
COSTS = {"phi@10": 10.0, "phi@50": 50.0, "phi@100": 100.0}
RESAMPLES = 200


@dataclass(frozen=True, repr=False)
class Evaluated(ABC):
    """``scores`` are those of each example, by name, on the CPU; ``metrics`` follow from them."""

    scores: Mapping[str, Tensor]
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Chosen on held-out data."""
    metrics: Mapping[str, float] = field(init=False)
    shown: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", self.summarize(self.scores))

    def summarize(self, scores: Mapping[str, Tensor]) -> dict[str, float]:
        """Every metric of these scores of examples."""
        return {name: float(value) for name, value in self._values(scores).items()}

    @abstractmethod
    def _values(self, scores: Mapping[str, Tensor]) -> dict[str, Any]: ...

    def intervals(
        self, level: float = 0.95, *, resamples: int = RESAMPLES, seed: int = 0
    ) -> dict[str, tuple[float, float]]:
        """Bounds (low, high) on every metric, by the bootstrap: percentiles over sets of examples drawn from these.

        They say how far another test set of this size might differ, for this one fit; another seed of the training may
        differ more. What counts one by one, such as tokens or pixels, is drawn one by one, as if it were independent.
        """
        if not 0 < level < 1:
            raise InputError(f"a level lies between 0 and 1, {level} does not")
        generator = torch.Generator().manual_seed(seed)
        drawn: dict[str, list[float]] = {name: [] for name in self.metrics}
        for _ in range(resamples):
            rows = torch.randint(len(self), (len(self),), generator=generator)
            for name, value in self.summarize({name: x[rows] for name, x in self.scores.items()}).items():
                drawn[name].append(value)
        tails = [(1 - level) / 2, (1 + level) / 2]
        bounds = {name: np.nanquantile(values, tails).tolist() for name, values in drawn.items()}
        return {name: (low, high) for name, (low, high) in bounds.items()}

    def to_pandas(self, level: float = 0.95) -> Any:
        """A table with a row for each metric: its value, and bootstrap bounds at this level."""
        bounds = self.intervals(level)
        rows = {name: (value, *bounds[name]) for name, value in self.metrics.items()}
        return pandas().DataFrame.from_dict(rows, orient="index", columns=["value", "low", "high"])

    def __len__(self) -> int:
        return len(self.scores["target"])

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {self.metrics[name]:.4g}" for name in self.shown if name in self.metrics)
        return f"{type(self).__name__}({len(self)} examples: {shown})"


@dataclass(frozen=True, repr=False)
class Evaluation(Evaluated):
    """What a predictor said about each example, on the CPU, and the metrics that follow.

    ``metrics`` are fractions: ``accuracy``, ``aurc``, ``c@1`` (coverage at a risk of 1 %), ``ece``, ``ace``,
    ``brier``, ``nll`` (for a sigmoid, binary cross-entropy summed over answers), for yes or no ``f1``; with held-out
    data ``phi@10`` (effective reliability at a cost of 10, its threshold chosen there); of a predictor that may abstain
    ``coverage``, the fraction it answers, and ``risk``, how many of those answers are wrong. Tokens, pixels and the
    decisions of ``PerLabel`` count one by one; those without a label (−100) do not.
    """

    shown: ClassVar[tuple[str, ...]] = ("accuracy", "aurc", "nll", "ece", "coverage", "risk")

    @property
    def confidence(self) -> Tensor:
        return self.scores["confidence"]

    @property
    def correctness(self) -> Tensor:
        return self.scores["correctness"]

    @property
    def label(self) -> Tensor:
        return self.scores["label"]

    @property
    def target(self) -> Tensor:
        """Class indices; for a score per class, the class of the largest."""
        return self.scores["target"]

    def _values(self, scores: Mapping[str, Tensor]) -> dict[str, Any]:
        confidence, correctness = scores["confidence"], scores["correctness"]
        values = {
            "accuracy": metrics.accuracy(correctness),
            "aurc": metrics.aurc(confidence, correctness),
            **{name: metrics.coverage_at_risk(confidence, correctness, risk) for name, risk in RISKS.items()},
            "ece": metrics.ece(confidence, correctness),
            "ace": metrics.ace(confidence, correctness),
            "brier": scores["brier"].double().mean(),
            "nll": scores["nll"].double().mean(),
        }
        if "yes" in scores and bool(((scores["target"] == 0) | (scores["target"] == 1)).all()):
            values["f1"] = metrics.f1(scores["yes"], scores["target"])
        for name, threshold in self.thresholds.items():
            values[name] = metrics.effective_reliability(confidence, correctness, COSTS[name], threshold)
        if "answered" in scores:
            answered = scores["answered"]
            values |= {"coverage": answered.double().mean(), "risk": 1 - correctness[answered].double().mean()}
        return values


@dataclass(frozen=True, repr=False)
class RegressionEvaluation(Evaluated):
    """What a regression said about each output (``mean``, ``std``, ``low``, ``high``), and the metrics that follow.

    ``metrics``: ``rmse``, ``nll``, ``crps`` (continuous ranked probability score), and of the 95 % intervals
    ``picp@95`` (the share of targets they hold) and ``mpiw@95`` (their mean width). Outputs count one by one.
    """

    shown: ClassVar[tuple[str, ...]] = ("rmse", "nll", "crps", "picp@95", "mpiw@95")

    def _values(self, scores: Mapping[str, Tensor]) -> dict[str, Any]:
        mean, var, target = scores["mean"], scores["std"].double().square(), scores["target"]
        return {
            "rmse": metrics.rmse(mean, target),
            "nll": metrics.gaussian_nll(mean, var, target),
            "crps": metrics.crps(mean, var, target),
            "picp@95": metrics.picp(scores["low"], scores["high"], target),
            "mpiw@95": metrics.mpiw(scores["low"], scores["high"]),
        }


class Evaluations(dict[str, Any]):
    """Evaluations of several predictors on the same examples, by name."""

    def to_pandas(self, level: float = 0.95) -> Any:
        """A table with a row for each predictor and metric; ``table["value"].unstack()`` has a column per metric."""
        tables = {name: evaluation.to_pandas(level) for name, evaluation in self.items()}
        return pandas().concat(tables, names=["predictor", "metric"])

    def __repr__(self) -> str:
        shown = dict.fromkeys(name for found in self.values() for name in found.shown if name in found.metrics)
        rows = [[name, *(found.metrics.get(key) for key in shown)] for name, found in self.items()]
        return tabulate(rows, ["", *shown], floatfmt=".4g")
