"""A result row of one predictor: its metrics on test data, thresholds chosen on held-out data."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping
from typing import Any

from varprop.evaluate import evaluate
from varprop.predict.predictors import Predictor, Propagated
from varprop.report import Row

PER_EXAMPLE = ("confidence", "correctness", "label", "target")


def measure(
    predictor: Predictor,
    held_out: Any,
    test: Any,
    *,
    row: str,
    method: str,
    seed: int,
    config: Mapping[str, Any],
    progress: bool = True,
) -> tuple[Row, dict[str, Any]]:
    """The row, and the scores of each example that belong to it: ``Results(folder).add(*measure(…))``."""
    before = evaluate(predictor, held_out, progress=False)
    after = evaluate(predictor, test, held_out=before, progress=progress)
    found = Row(
        row=row,
        method=method,
        seed=seed,
        examples=len(after),
        metrics=after.metrics,
        scales=predictor.net.scales if isinstance(predictor, Propagated) else None,
        config=config,
        versions={name: _version(name) for name in ("torch", "varprop")},
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )
    scores = {name: getattr(after, name).numpy() for name in PER_EXAMPLE}
    scores |= {f"held_out_{name}": getattr(before, name).numpy() for name in ("confidence", "correctness")}
    return found, scores


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "not installed"
