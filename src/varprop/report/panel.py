"""What the operating-point panel of the page needs, as JSON: few numbers, computed here, looked up there."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from matplotlib.image import imsave

from varprop.evaluation.arrays import Examples, Scores
from varprop.evaluation.curves import Staircase, staircase
from varprop.evaluation.methods import method_of
from varprop.evaluation.results import Results
from varprop.report import lineup
from varprop.report.style import styles
from varprop.report.summary import Summary

MOST_IMAGES = 1000
"""Thumbnails beyond these are left out: a page of many megabytes opens slowly."""
_ACROSS = 40  # images in a line of the sheet


def panel(results: Results, summary: Summary) -> dict[str, Any] | None:
    """Per experiment, seed and method: the steps from risk budget to threshold, and who is answered at each.

    None where no row has held-out scores.
    """
    found = [_experiment(results, summary, name) for name in summary.experiments]
    shown = [each for each in found if each["runs"]]
    return {"experiments": shown} if shown else None


def _experiment(results: Results, summary: Summary, name: str) -> dict[str, Any]:
    examples = results.examples(name)
    shown = min(len(examples.images), MOST_IMAGES) if examples else 0
    runs: dict[str, dict[str, Any]] = {}
    methods = lineup.main(summary.methods_in((name,)))
    look = styles(summary.methods)
    for method in methods:
        for row in summary.of(name, method):
            scores = results.scores(row)
            steps = staircase(scores) if scores else None
            if scores and steps:
                runs.setdefault(str(row.seed), {})[method] = _run(scores, steps, shown)
    risks = [run["risk"][-1] for seed in runs.values() for run in seed.values()]
    return {
        "name": name,
        "title": summary.title(name),
        "methods": [{"slug": m, "title": method_of(m).title, "role": look[m].role} for m in methods],
        "seeds": sorted(runs, key=int),
        "slider": _slider(max(risks, default=0.05)),
        "sheet": _sheet(examples) if examples else None,
        "names": list(examples.names) if examples else [],
        "runs": runs,
    }


def _run(scores: Scores, steps: Staircase, shown: int) -> dict[str, Any]:
    run: dict[str, Any] = {
        "examples": len(scores["confidence"]),
        "heldOut": len(scores["held_out_confidence"]),
        "slack": steps.slack,
        "threshold": steps.threshold.astype(np.float64).tolist(),
        "risk": steps.held_out_risk.tolist(),
        "coverage": steps.held_out_coverage.tolist(),
        "answered": steps.answered.tolist(),
        "errors": [int(e) if e == int(e) else round(e, 6) for e in steps.errors.tolist()],
    }
    if shown and "label" in scores and "target" in scores:
        confidence = scores["confidence"][:shown]
        # The first step that answers the example; one beyond the last if none does.
        first = np.searchsorted(-steps.threshold, -confidence, side="left")
        run["step"] = first.tolist()
        run["confidence"] = np.round(confidence.astype(np.float64), 3).tolist()
        run["wrong"] = (1 - scores["correctness"][:shown]).round(2).tolist()
        run["label"], run["target"] = (scores[key][:shown].tolist() for key in ("label", "target"))
    return run


def _slider(risk: float) -> dict[str, float]:
    """A range that reaches full coverage, in about 200 steps of a round size. In percent."""
    goal = max(100 * risk * 1.05, 0.5)
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if goal / s <= 220 or s == 0.5)
    return {"max": round(math.ceil(goal / step / 10) * 10 * step, 2), "step": step}


def _sheet(examples: Examples) -> dict[str, Any]:
    """All thumbnails in one PNG, as a data URI, and where they are in it."""
    images = examples.images[:MOST_IMAGES]
    count, height, width = images.shape[:3]
    across = min(_ACROSS, count)
    down = math.ceil(count / across)
    sheet = np.zeros((down * across, *images.shape[1:]), np.uint8)
    sheet[:count] = images
    sheet = sheet.reshape(down, across, *images.shape[1:]).swapaxes(1, 2).reshape(down * height, across * width, -1)
    colours = sheet if sheet.shape[2] == 3 else sheet.repeat(3, axis=2)
    out = io.BytesIO()
    imsave(out, colours, format="png", metadata={"Software": ""})
    uri = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
    return {"uri": uri, "count": count, "across": across, "down": down, "width": width, "height": height}
