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
from varprop.prediction.prediction import Prediction
from varprop.prediction.predictors import Predictor, Propagated, answers

RISKS = {"c@0.5": 0.005, "c@1": 0.01, "c@2": 0.02, "c@5": 0.05}
COSTS = {"phi@10": 10.0, "phi@50": 50.0, "phi@100": 100.0}


@dataclass(frozen=True)
class Evaluation:
    """What a predictor said about each example, on the CPU, and the metrics that follow.

    ``metrics`` are fractions: ``accuracy``, ``aurc``, ``c@1`` (coverage at a risk of 1 %), ``ece``, ``ace``,
    ``brier``, ``nll`` (for a sigmoid, binary cross-entropy summed over answers), and with held-out data ``phi@10``
    (effective reliability at a cost of 10, its threshold chosen there).
    """

    metrics: Mapping[str, float]
    confidence: Tensor
    correctness: Tensor
    label: Tensor
    target: Tensor
    """Class indices; for a score per class, the class of the largest."""

    def __len__(self) -> int:
        return len(self.confidence)


def evaluate(
    predictor: Predictor, batches: Any, *, held_out: Evaluation | None = None, progress: bool = True
) -> Evaluation:
    """Run ``predictor`` over ``batches`` and compute every metric. Thresholds are chosen on ``held_out`` data only."""
    return evaluate_answers(answers(predictor, batches), held_out=held_out, progress=progress)


def evaluate_answers(
    pairs: Iterable[tuple[Any, Tensor]], *, held_out: Evaluation | None = None, progress: bool = True
) -> Evaluation:
    """The same for predictions that are there already, each with its targets."""
    parts: dict[str, list[Tensor]] = {}
    with tqdm(desc="evaluate", unit=" examples", disable=None if progress else True, leave=False) as bar:
        for prediction, target in pairs:
            if not isinstance(prediction, Prediction):
                raise InputError("evaluate() is for classes: for regression, compare intervals and targets yourself")
            for name, value in _of_each(prediction, target).items():
                parts.setdefault(name, []).append(value.cpu())
            bar.update(len(target))
    found = {name: torch.cat(values) for name, values in parts.items()}
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
    if held_out is not None:
        for name, cost in COSTS.items():
            threshold = metrics.best_threshold(held_out.confidence, held_out.correctness, cost)
            values[name] = metrics.effective_reliability(confidence, correctness, cost, threshold)
    numbers = {name: float(value) for name, value in values.items()}
    return Evaluation(numbers, confidence, correctness, found["label"], found["target"])


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
    return {
        "confidence": prediction.confidence.reshape(-1),
        "correctness": prediction.correctness(target).reshape(-1),
        "label": prediction.label.reshape(-1),
        "target": flat.argmax(-1) if scored and classes > 1 else flat.reshape(-1),
        "nll": nll,
        "brier": brier,
    }


def measure(
    predictor: Predictor, held_out: Any, test: Any, *, progress: bool = True, **entries: Any
) -> tuple[Row, dict[str, Any]]:
    """The result row, and the scores of each example that belong to it: ``Results(folder).add(*measure(…))``.

    Thresholds are chosen on held-out data. ``entries`` are what a row has beside its numbers: ``row``, ``method``,
    ``seed``, ``config``.
    """
    before = evaluate(predictor, held_out, progress=False)
    after = evaluate(predictor, test, held_out=before, progress=progress)
    scales = predictor.net.scales if isinstance(predictor, Propagated) else None
    return record(before, after, scales=scales, **entries)


def record(
    before: Evaluation, after: Evaluation, *, scales: Mapping[str, float] | None = None, **entries: Any
) -> tuple[Row, dict[str, Any]]:
    """The same for what was evaluated already, on held-out and on test data."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    found = Row(
        examples=len(after),
        metrics=after.metrics,
        scales=scales,
        curve=percentiles(after.confidence, after.correctness),
        versions={name: _version(name) for name in ("torch", "varprop")} | gpu,
        revision=revision(),
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **entries,
    )
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
