"""Every metric of a predictor over a data set, in one pass, and the result row that they make."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop import metrics
from varprop.errors import InputError
from varprop.evaluation.curves import percentiles
from varprop.evaluation.results import Row
from varprop.metrics.proper import bce_of_each, brier_of_each, nll_of_each
from varprop.prediction.links import Bernoulli
from varprop.prediction.prediction import Prediction, Regression
from varprop.prediction.predictors import Predictor, Propagated, answers

RISKS = {"c@0.5": 0.005, "c@1": 0.01, "c@2": 0.02, "c@5": 0.05}
COSTS = {"phi@10": 10.0, "phi@50": 50.0, "phi@100": 100.0}
LEVEL = 0.95
"""Of the intervals that are judged."""


@dataclass(frozen=True)
class Evaluation:
    """What a predictor said about each example, on the CPU, and the metrics that follow.

    ``metrics`` are fractions: ``accuracy``, ``aurc``, ``c@1`` (coverage at a risk of 1 %), ``ece``, ``ace``,
    ``brier``, ``nll`` (for a sigmoid, binary cross-entropy summed over answers), for yes or no ``f1``, and with
    held-out data ``phi@10`` (effective reliability at a cost of 10, its threshold chosen there). Tokens, pixels and the
    decisions of ``PerLabel`` count one by one; those without a label (−100) do not.
    """

    metrics: Mapping[str, float]
    confidence: Tensor
    correctness: Tensor
    label: Tensor
    target: Tensor
    """Class indices; for a score per class, the class of the largest."""

    def __len__(self) -> int:
        return len(self.confidence)


@dataclass(frozen=True)
class RegressionEvaluation:
    """What a regression said about each output, on the CPU, and the metrics that follow; outputs count one by one.

    ``metrics``: ``rmse``, ``nll``, ``crps`` (continuous ranked probability score), and of the 95 % intervals
    ``picp@95`` (the share of targets they hold) and ``mpiw@95`` (their mean width).
    """

    metrics: Mapping[str, float]
    mean: Tensor
    std: Tensor
    low: Tensor
    high: Tensor
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)


def evaluate(
    predictor: Predictor,
    batches: Any,
    *,
    held_out: Evaluation | RegressionEvaluation | None = None,
    progress: bool = True,
) -> Any:
    """Run ``predictor`` over ``batches`` and compute every metric. Thresholds are chosen on ``held_out`` data only.

    Returns an ``Evaluation``; of a regression, a ``RegressionEvaluation``.
    """
    return evaluate_answers(answers(predictor, batches), held_out=held_out, progress=progress)


def evaluate_answers(
    pairs: Iterable[tuple[Any, Tensor]],
    *,
    held_out: Evaluation | RegressionEvaluation | None = None,
    progress: bool = True,
) -> Any:
    """The same for predictions that are there already, each with its targets."""
    parts: dict[str, list[Tensor]] = {}
    with tqdm(desc="evaluate", unit=" examples", disable=None if progress else True, leave=False) as bar:
        for prediction, target in pairs:
            of_each = _of_output if isinstance(prediction, Regression) else _of_each
            for name, value in of_each(prediction, target).items():
                parts.setdefault(name, []).append(value.cpu())
            bar.update(len(target))
    found = {name: torch.cat(values) for name, values in parts.items()}
    if "std" in found:
        return RegressionEvaluation(_regression_metrics(**found), **found)
    if not isinstance(held_out, Evaluation | None):
        raise InputError("the held-out data are those of a regression, and the predictor has classes")
    confidence, correctness = found["confidence"], found["correctness"]
    values = {
        "accuracy": metrics.accuracy(correctness),
        "aurc": metrics.aurc(confidence, correctness),
        **{name: metrics.coverage_at_risk(confidence, correctness, risk) for name, risk in RISKS.items()},
        "ece": metrics.ece(confidence, correctness),
        "ace": metrics.ace(confidence, correctness),
        "brier": found["brier"].double().mean(),
        "nll": found["nll"].double().mean(),
    }
    if "yes" in found and bool(((found["target"] == 0) | (found["target"] == 1)).all()):
        values["f1"] = metrics.f1(found["yes"], found["target"])
    if held_out is not None:
        for name, cost in COSTS.items():
            threshold = metrics.best_threshold(held_out.confidence, held_out.correctness, cost)
            values[name] = metrics.effective_reliability(confidence, correctness, cost, threshold)
    numbers = {name: float(value) for name, value in values.items()}
    return Evaluation(numbers, confidence, correctness, found["label"], found["target"])


def _of_output(prediction: Regression, target: Tensor) -> dict[str, Tensor]:
    if target.shape != prediction.mean.shape:
        raise InputError(f"targets of shape {list(target.shape)} for outputs of shape {list(prediction.mean.shape)}")
    low, high = prediction.interval(LEVEL)
    found = {"mean": prediction.mean, "std": prediction.std, "low": low, "high": high, "target": target}
    return {name: value.flatten() for name, value in found.items()}


def _regression_metrics(mean: Tensor, std: Tensor, low: Tensor, high: Tensor, target: Tensor) -> dict[str, float]:
    var = std.double().square()
    found = {
        "rmse": metrics.rmse(mean, target),
        "nll": metrics.gaussian_nll(mean, var, target),
        "crps": metrics.crps(mean, var, target),
        "picp@95": metrics.picp(low, high, target),
        "mpiw@95": metrics.mpiw(low, high),
    }
    return {name: float(value) for name, value in found.items()}


def _of_each(prediction: Prediction, target: Tensor) -> dict[str, Tensor]:
    """Per example; leading dimensions are examples."""
    classes = prediction.probs.shape[-1]
    probs = prediction.probs.reshape(-1, classes)
    scored = target.is_floating_point() and target.shape == prediction.probs.shape
    flat = target.reshape(-1, classes) if scored else target.reshape(-1)
    if isinstance(prediction.link, Bernoulli):
        many = flat.reshape(-1, 1) if classes == 1 else flat
        nll, brier = bce_of_each(probs, many.to(probs.dtype)), (probs - many).square().sum(-1)
    else:
        nll, brier = nll_of_each(probs, flat), brier_of_each(probs, flat)
    decided = {"yes": prediction.label.reshape(-1)} if classes == 1 else {}
    return {
        "confidence": prediction.confidence.reshape(-1),
        "correctness": prediction.correctness(target).reshape(-1),
        "label": prediction.label.reshape(-1),
        "target": flat.argmax(-1) if scored and classes > 1 else flat.reshape(-1),
        "nll": nll,
        "brier": brier,
        **decided,
    }


def measure(
    predictor: Predictor, held_out: Any, test: Any, *, progress: bool = True, **entries: Any
) -> tuple[Row, Any]:
    """The result row, and the scores of each example that belong to it: ``Results(folder).add(*measure(…))``.

    Thresholds are chosen on held-out data. ``entries`` are what a row has beside its numbers: ``row``, ``method``,
    ``seed``, ``config``.
    """
    before = evaluate(predictor, held_out, progress=False)
    after = evaluate(predictor, test, held_out=before, progress=progress)
    scales = predictor.net.scales if isinstance(predictor, Propagated) else None
    return record(before, after, scales=scales, **entries)


def record(before: Any, after: Any, *, scales: Mapping[str, float] | None = None, **entries: Any) -> tuple[Row, Any]:
    """The same for what was evaluated already, on held-out and on test data."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    found = Row(
        examples=len(after),
        metrics=after.metrics,
        scales=scales,
        curve=percentiles(after.confidence, after.correctness) if isinstance(after, Evaluation) else None,
        versions={name: _version(name) for name in ("torch", "varprop")} | gpu,
        revision=revision(),
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **entries,
    )
    if not isinstance(after, Evaluation):  # a regression has neither right nor wrong
        return found, None
    scores = {name: getattr(after, name).numpy() for name in ("confidence", "correctness", "label", "target")}
    scores |= {f"held_out_{name}": getattr(before, name).numpy() for name in ("confidence", "correctness")}
    return found, scores


@functools.cache
def revision() -> str:
    """Of the library's source: a hash of what was really run, which a commit with changes on top of it is not."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return f"sha256:{digest.hexdigest()[:16]}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "not installed"
