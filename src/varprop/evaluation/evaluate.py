"""Every metric of a predictor over a data set, in one pass, and the result row that they make."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm  # type: ignore[import-untyped]

import varprop
from varprop import metrics
from varprop.batch import read, repeatable
from varprop.errors import InputError
from varprop.evaluation.evaluated import COSTS, Evaluation, Evaluations, RegressionEvaluation
from varprop.evaluation.results import METRICS, POINTS, Row
from varprop.metrics.proper import brier_of_each, nll_of_each
from varprop.network.moment_net import MomentNet
from varprop.prediction.links import Bernoulli
from varprop.prediction.prediction import Prediction, Regression
from varprop.prediction.predictors import UNLABELLED, MeanNetwork, Predictor, Propagated, link_for, predict_batch
from varprop.prediction.selective import Decision
from varprop.prediction.targets import class_scores, refuse_shape
from varprop.sharing import shared

LEVEL = 0.95
"""Of the intervals that are judged."""


def evaluate(predictor: Any, batches: Any, *, held_out: Any = None, progress: bool = True, group: Any = None) -> Any:
    """Run a predictor over ``batches`` and compute every metric. Thresholds are chosen on ``held_out`` data only.

    Returns an ``Evaluation``; of a regression, a ``RegressionEvaluation``. A plain model is taken as ``MeanNetwork``,
    with the link that the targets suggest. Of several predictors, in a list or a dict, comes an ``Evaluations``;
    ``held_out`` is what the same call has returned for held-out data. With a ``group`` of ``torch.distributed``, each
    of its processes, given the same, predicts for its share of the batches, and has all metrics of all.
    """
    if isinstance(predictor, Predictor):
        with _bar(progress) as bar:
            taken_apart = read(batches, one=predictor.takes_one)
            parts = shared(taken_apart, lambda _, batch: _of_each(*predict_batch(predictor, batch), bar), group)
        return _evaluation(parts, held_out)
    batches = repeatable(batches)
    if not isinstance(predictor, Mapping | list | tuple):
        return evaluate(mean_network(predictor, batches), batches, held_out=held_out, progress=progress, group=group)
    several = predictor if isinstance(predictor, Mapping) else _by_class(predictor)
    return Evaluations(
        {
            name: evaluate(each, batches, held_out=held_out[name] if held_out else None, progress=progress, group=group)
            for name, each in several.items()
        }
    )


def evaluate_answers(
    pairs: Iterable[tuple[Any, Tensor]],
    *,
    held_out: Evaluation | RegressionEvaluation | None = None,
    progress: bool = True,
) -> Any:
    """The same for predictions that are there already, each with its targets."""
    with _bar(progress) as bar:
        parts = [_of_each(prediction, target, bar) for prediction, target in pairs]
    return _evaluation(parts, held_out)


def _bar(progress: bool) -> Any:
    return tqdm(desc="evaluate", unit=" examples", disable=None if progress else True, leave=False)


def _of_each(prediction: Any, target: Tensor, bar: Any) -> dict[str, Tensor]:
    bar.update(len(target))
    if isinstance(prediction, Regression):
        found = _of_output(prediction, target)
    else:
        found = scores_of_each(*prediction.drop_unlabelled(target))
    return {name: value.cpu() for name, value in found.items()}


def _evaluation(parts: Iterable[dict[str, Tensor]], held_out: Evaluation | RegressionEvaluation | None) -> Any:
    gathered = list(parts)
    found = {name: torch.cat([part[name] for part in gathered]) for name in gathered[0]} if gathered else {}
    if not len(found.get("target", ())):
        raise InputError(UNLABELLED)
    if "std" in found:
        return RegressionEvaluation(found)
    if not isinstance(held_out, Evaluation | None):
        raise InputError("the held-out data are those of a regression, and the predictor has classes")
    thresholds = {} if held_out is None else best_thresholds(held_out.confidence, held_out.correctness)
    return Evaluation(found, thresholds)


def best_thresholds(confidence: Tensor, correctness: Tensor) -> dict[str, float]:
    """For each cost of a wrong answer, the confidence from which on to answer."""
    return {name: metrics.best_threshold(confidence, correctness, cost) for name, cost in COSTS.items()}


def mean_network(model: Any, batches: Any) -> MeanNetwork:
    """A plain model as a predictor."""
    if isinstance(getattr(model, "_orig_mod", model), MomentNet):
        raise InputError(
            "evaluate(predictor, batches) was given a propagated network, which has no link: "
            "evaluate(vp.Propagated(net), batches)"
        )
    if not isinstance(model, nn.Module):
        raise InputError(
            f"evaluate(predictor, batches) takes a predictor, a model, or several in a list or dict, not a "
            f"{type(model).__name__}: evaluate(vp.fit(model, held_out), test)"
        )
    plain = MeanNetwork(model)
    first = next(read(batches, one=plain.takes_one)).to(plain.device)
    with torch.no_grad():
        logits = plain.logits(*first.args, **first.kwargs).mean
    return MeanNetwork(model, link=link_for(logits, first.target))


def _by_class(predictors: Iterable[Any]) -> dict[str, Any]:
    """By the name of their class; further ones of a class are numbered."""
    found: dict[str, Any] = {}
    for predictor in predictors:
        kind = type(predictor).__name__
        count = sum(name.partition(" ")[0] == kind for name in found)
        found[f"{kind} {count + 1}" if count else kind] = predictor
    return found


def _of_output(prediction: Regression, target: Tensor) -> dict[str, Tensor]:
    refuse_shape(prediction.mean, target)
    low, high = prediction.interval(LEVEL)
    found = {"mean": prediction.mean, "std": prediction.std, "low": low, "high": high, "target": target}
    return {name: value.flatten() for name, value in found.items()}


def scores_of_each(answer: Prediction | Decision, target: Tensor) -> dict[str, Tensor]:
    """Per example; leading dimensions are examples."""
    prediction = answer.prediction if isinstance(answer, Decision) else answer
    decided = {"answered": answer.answered.reshape(-1)} if isinstance(answer, Decision) else {}
    correctness = prediction.correctness(target)  # first, because it says what is wrong with the target
    classes = prediction.probs.shape[-1]
    probs = prediction.probs.reshape(-1, classes)
    flat = target.reshape(-1)
    if prediction.is_scored(target):
        flat, said = (x.reshape(-1, classes) for x in class_scores(prediction.probs, target))
    if isinstance(prediction.link, Bernoulli):
        nll = prediction.link.loss_of_each(prediction, target).reshape(-1)
        brier = (said * (probs - flat)).square().sum(-1)
    else:
        nll, brier = nll_of_each(probs, flat), brier_of_each(probs, flat)
    if classes == 1:
        decided["yes"] = prediction.label.reshape(-1)
    return {
        "confidence": prediction.confidence.reshape(-1),
        "correctness": correctness.reshape(-1),
        "label": prediction.label.reshape(-1),
        "target": flat.argmax(-1) if flat.ndim > 1 and classes > 1 else flat.reshape(-1),
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
    """The same for what was evaluated already, on held-out data (or not: ``None``) and on test data."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    found = Row(
        examples=len(after),
        metrics={name: value for name, value in after.metrics.items() if name in METRICS},
        scales=scales,
        curve=risk_curve(after.confidence, after.correctness) if isinstance(after, Evaluation) else None,
        versions={"torch": str(torch.__version__), "varprop": varprop.__version__} | gpu,
        revision=revision(),
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **entries,
    )
    if not isinstance(after, Evaluation):  # a regression has neither right nor wrong
        return found, None
    scores = {name: getattr(after, name).numpy() for name in ("confidence", "correctness", "label", "target")}
    if before is not None:
        scores |= {f"held_out_{name}": getattr(before, name).numpy() for name in ("confidence", "correctness")}
    return found, scores


def risk_curve(confidence: Tensor, correctness: Tensor) -> tuple[float, ...]:
    """Risk of the most confident 1, 2, … 100 % of the examples, to six digits.

    Summed errors grow in straight lines within a group of equal confidences: the average over all their orders.
    """
    found = metrics.risk_coverage_curve(confidence, correctness)
    coverage, risk = found.coverage.numpy(), found.risk.numpy()
    grid = np.arange(1, POINTS + 1) / POINTS
    errors = np.interp(grid, np.append(0, coverage), np.append(0, coverage * risk))
    return tuple(round(float(risk), 6) for risk in (errors / grid).clip(0, 1))


@functools.cache
def revision() -> str:
    """Of the library's source: a hash of what was really run, which a commit with changes on top of it is not."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return f"sha256:{digest.hexdigest()[:16]}"
