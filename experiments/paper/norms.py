"""How near rules for LayerNorm come to sampling: numbers over all activations, and some of them to draw."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from varprop.errors import ResultsError
from varprop.evaluation.methods import method_of
from varprop.evaluation.results import Results
from varprop.report.figures import Drawing
from varprop.report.style import MUTED, figure, styles
from varprop.report.tables import Table, words

SYNTHETIC = "synthetic"
"""The name under which a folder keeps what was computed from synthetic inputs."""
QUANTITIES = {"mean": "mean", "var": "variance"}
MOST = 2000
"""Points that are kept."""


@dataclass(frozen=True)
class Norms:
    """One comparison: rules against sampling, through LayerNorms with the same inputs."""

    title: str
    samples: int
    activations: int
    """How many the errors are taken over."""
    rmse: Mapping[str, Mapping[str, float]]
    """By rule, named as the method that uses it, of ``mean`` and ``var``."""
    points: Mapping[str, np.ndarray]
    """``mean`` and ``var`` of some activations [N, 1 + rules]: as sampled, then as each rule of ``rmse`` has them."""


def save_norms(results: Results, row: str, found: Sequence[Norms]) -> None:
    """Keep the comparisons of an experiment, or ``SYNTHETIC`` ones."""
    facts = [{"title": n.title, "samples": n.samples, "activations": n.activations, "rmse": n.rmse} for n in found]
    arrays = {f"{name}-{i}": n.points[name].astype(np.float32) for i, n in enumerate(found) for name in QUANTITIES}
    results.keep(f"norms/{row}", {"facts": np.array(json.dumps(facts)), **arrays})


def load_norms(results: Results, row: str) -> tuple[Norms, ...]:
    """What ``save_norms`` kept; nothing if it was not called."""
    arrays = results.kept(f"norms/{row}")
    if arrays is None:
        return ()
    try:
        facts = json.loads(str(arrays["facts"]))
        points = [{name: arrays[f"{name}-{i}"] for name in QUANTITIES} for i in range(len(facts))]
        return tuple(Norms(points=at, **fact) for at, fact in zip(points, facts, strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{results.file}: norms/{row} holds no comparison ({error}); run it again") from None


def scatter(experiment: str, found: Sequence[Norms], title: str) -> Drawing | None:
    """A line of two plots per comparison: means and variances, with the error of each rule in the legend."""
    if not found:
        return None
    fig = figure(6.4, 2.9 * len(found))
    grid = fig.subplots(len(found), 2, squeeze=False)
    frames, told = [], []
    for line, each in zip(grid, found, strict=True):
        for axes, quantity in zip(line, QUANTITIES, strict=True):
            _draw(axes, each, quantity)
            points = pd.DataFrame(each.points[quantity], columns=["sampled", *each.rmse])
            frames.append(points.assign(comparison=each.title, quantity=quantity))
            errors = ", ".join(f"{method_of(rule).title} {rmse[quantity]:.3g}" for rule, rmse in each.rmse.items())
            told.append(f"{each.title}, {QUANTITIES[quantity]}: RMSE {errors}")
    alt = f"Predicted against sampled moments of single activations. {'; '.join(told)}"
    return Drawing(experiment, "norms", title, alt, fig, pd.concat(frames))


def _draw(axes: Axes, found: Norms, quantity: str) -> None:
    points, look = found.points[quantity], styles(list(found.rmse))
    for i, (rule, rmse) in enumerate(found.rmse.items(), start=1):
        # The first rule lies on top: it is nearer to the diagonal and covers less.
        drawn: dict[str, Any] = {"ms": 2.4, "mew": 0, "alpha": 0.5, "color": look[rule].colour, "zorder": 3 - i / 10}
        label = f"{method_of(rule).title}, RMSE {rmse[quantity]:.3g}"
        # As an image: thousands of points would make a page of megabytes.
        axes.plot(points[:, 0], points[:, i], look[rule].marker, label=label, rasterized=True, **drawn)
    ends = [points[:, 0].min(), points[:, 0].max()]
    axes.plot(ends, ends, color=MUTED, lw=0.9, ls=(0, (3, 2)), zorder=4)
    axes.set(xlabel=f"Sampled {QUANTITIES[quantity]}", ylabel=f"Predicted {QUANTITIES[quantity]}")
    axes.set_title(found.title, fontsize=8.5)
    # Below, so that it covers no points: sampled variances are small where a rule's are too large.
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), markerscale=2, handletextpad=0.2, borderpad=0.1)


def errors(experiment: str, found: Sequence[Norms]) -> Table:
    """Root mean square errors of mean and variance, by comparison and rule."""
    lines = [
        (experiment, n.title, method_of(rule).title, rmse["mean"], rmse["var"], n.activations, n.samples)
        for n in found
        for rule, rmse in n.rmse.items()
    ]
    names = ["experiment", "comparison", "rule", "rmse_mean", "rmse_var", "activations", "samples"]
    numbers = pd.DataFrame(lines, columns=names)
    cells = numbers.drop(columns="experiment").map(
        lambda value: f"{value:,.4g}" if isinstance(value, float) else str(value)
    )
    cells.columns = ["Comparison", "Rule", "RMSE of the mean", "RMSE of the variance", "Activations", "Samples"]
    return replace(words("norms", experiment, "LayerNorm's rules against sampling", cells), numbers=numbers)
