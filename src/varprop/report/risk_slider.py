"""What the page's slider over risk budgets looks up, as JSON: every operating point is computed here."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from PIL import Image

from varprop.evaluation.arrays import Scores
from varprop.evaluation.methods import method_of
from varprop.evaluation.results import Results
from varprop.evaluation.thresholds import LEVEL, Finder, certify, meet
from varprop.report import shown_methods
from varprop.report.certified import certified_coverage, held_out_scores
from varprop.report.style import styles
from varprop.report.summary import Summary

MOST_EXAMPLES = 400
"""Examples beyond these are left out: a page of many megabytes opens slowly."""
# Percentages that a reader might ask for: steps of 0.1, 0.25, 0.5, 1 and 5.
BUDGETS = (*(i / 10 for i in range(1, 10)), *(i / 4 for i in range(4, 8)), *(i / 2 for i in range(4, 10)))
BUDGETS += (*range(5, 20), *range(20, 95, 5))
_ACROSS = 40  # images in a line of the sheet


def operating_points(results: Results, summary: Summary) -> dict[str, Any] | None:
    """Per experiment, seed and method: for each risk budget the threshold, and what it does on the test set.

    None where no row has held-out scores.
    """
    found = [_experiment(results, summary, name) for name in summary.experiments]
    shown = [each for each in found if each["runs"]]
    return {"experiments": shown, "level": LEVEL} if shown else None


def _experiment(results: Results, summary: Summary, name: str) -> dict[str, Any]:
    examples = results.examples(name)
    examples = examples and examples.first(MOST_EXAMPLES)
    methods, look = shown_methods.main(summary.methods_in((name,))), styles(summary.methods)
    kept = held_out_scores(results, summary, name)
    budgets = _budgets(max((1 - s["held_out_correctness"].mean() for s in kept.values()), default=0))
    certified = certified_coverage(results, summary, name)
    runs: dict[str, dict[str, Any]] = {}
    for (method, seed), scores in sorted(kept.items(), key=lambda item: item[0][1]):
        runs.setdefault(str(seed), {})[method] = _run(scores, budgets, len(examples or ()))
    return {
        "name": name,
        "title": summary.title(name),
        "methods": [{"slug": m, "title": method_of(m).title, "role": look[m].role} for m in methods],
        "seeds": list(runs),
        "budgets": budgets,
        "start": 100 * certified.risk if certified else 1,
        "sheet": _sheet(examples.images) if examples and examples.images is not None else None,
        "texts": list(examples.texts) if examples else [],
        "names": list(examples.names) if examples else [],
        "runs": runs,
    }


def _budgets(risk: float) -> list[float]:
    """Up to one that answers everything."""
    enough = next((i for i, budget in enumerate(BUDGETS) if budget >= 100 * risk), len(BUDGETS) - 1)
    return list(BUDGETS[: max(enough, BUDGETS.index(5)) + 1])


def _run(scores: Scores, budgets: list[float], shown: int) -> dict[str, Any]:
    run: dict[str, Any] = {
        "examples": len(scores["confidence"]),
        "certified": _points(scores, budgets, certify),
        "met": _points(scores, budgets, meet),
    }
    if shown and "label" in scores and "target" in scores:
        confidence = scores["confidence"]
        # Those surer than the example: it is answered if more examples than these are.
        rank = len(confidence) - np.searchsorted(np.sort(confidence), confidence[:shown], side="right")
        run["rank"] = rank.tolist()
        run["confidence"] = np.round(confidence[:shown].astype(np.float64), 3).tolist()
        run["wrong"] = [_short(wrong) for wrong in (1 - scores["correctness"][:shown]).round(2)]
        run["label"], run["target"] = (scores[key][:shown].tolist() for key in ("label", "target"))
    return run


def _points(scores: Scores, budgets: list[float], find: Finder) -> list[list[float] | None]:
    """Threshold, answered and errors for each budget; nothing where it cannot be met."""
    found = (find(scores, budget / 100) for budget in budgets)
    # JSON has no −∞, the threshold that answers everything.
    return [[round(max(p.threshold, -1e9), 5), p.answered, _short(p.errors)] if p else None for p in found]


def _short(value: float) -> float:
    return int(value) if value == int(value) else round(float(value), 6)


def _sheet(images: np.ndarray) -> dict[str, Any]:
    """All thumbnails in one image, and where they are in it."""
    count, height, width = images.shape[:3]
    across = min(_ACROSS, count)
    down = math.ceil(count / across)
    sheet = np.zeros((down * across, *images.shape[1:]), np.uint8)
    sheet[:count] = images
    sheet = sheet.reshape(down, across, *images.shape[1:]).swapaxes(1, 2).reshape(down * height, across * width, -1)
    colours = sheet if sheet.shape[2] == 3 else sheet.repeat(3, axis=2)
    out = io.BytesIO()
    Image.fromarray(colours).save(out, "webp", method=6, quality=90)
    uri = f"data:image/webp;base64,{base64.b64encode(out.getvalue()).decode()}"
    return {"uri": uri, "count": count, "across": across, "down": down, "width": width, "height": height}
