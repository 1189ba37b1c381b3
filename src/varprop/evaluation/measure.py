"""A result row of one predictor: its metrics on test data, thresholds chosen on held-out data."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from varprop.evaluation.curves import percentiles
from varprop.evaluation.evaluate import Evaluation, evaluate
from varprop.prediction.predictors import Predictor, Propagated
from varprop.report import Row

PER_EXAMPLE = ("confidence", "correctness", "label", "target")


def measure(
    predictor: Predictor, held_out: Any, test: Any, *, progress: bool = True, **entries: Any
) -> tuple[Row, dict[str, Any]]:
    """The row, and the scores of each example that belong to it: ``Results(folder).add(*measure(…))``.

    ``entries`` are what a row has beside its numbers: ``row``, ``method``, ``seed``, ``config``.
    """
    before = evaluate(predictor, held_out, progress=False)
    after = evaluate(predictor, test, held_out=before, progress=progress)
    scales = predictor.net.scales if isinstance(predictor, Propagated) else None
    return record(before, after, scales=scales, **entries)


def record(
    before: Evaluation, after: Evaluation, *, scales: Mapping[str, float] | None = None, **entries: Any
) -> tuple[Row, dict[str, Any]]:
    """The same for what was evaluated already, on held-out and on test data."""
    found = Row(
        examples=len(after),
        metrics=after.metrics,
        scales=scales,
        curve=percentiles(after.confidence, after.correctness),
        versions={name: _version(name) for name in ("torch", "varprop")} | _device(),
        revision=revision(),
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **entries,
    )
    scores = {name: getattr(after, name).numpy() for name in PER_EXAMPLE}
    scores |= {f"held_out_{name}": getattr(before, name).numpy() for name in ("confidence", "correctness")}
    return found, scores


@functools.cache
def revision() -> str:
    """Of the library's source: a hash of what was really run, which a commit with changes on top of it is not."""
    folder = Path(__file__).parent
    files = sorted(folder.rglob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return f"sha256:{digest.hexdigest()[:16]}"


def _device() -> dict[str, str]:
    return {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "not installed"
