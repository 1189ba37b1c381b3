"""The figures of one experiment. Each comes with the numbers it shows, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from varprop.evaluation.curves import Curve, Reliability
from varprop.report.style import FAINT, MUTED, SURFACE, Style, figure, matplotlib

Cells = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Drawing:
    """A figure: as a whole for a file, in panels for a page that may be narrow, and as a table."""

    name: str
    title: str
    alt: str
    whole: Any
    panels: tuple[tuple[str, Any], ...]
    """Alternative text and figure."""
    header: tuple[str, ...]
    cells: Cells


def log_axis(axis: Any, values: Sequence[float]) -> None:
    """A logarithmic axis with plain numbers at 1, 2, 4, 8 or 1, 4, 16 or powers of ten."""
    ticker = matplotlib("matplotlib.ticker")
    low, high = min(values), max(values)
    pad = (high / low) ** 0.14 * 1.06
    low, high = low / pad, high * pad
    base = next((base for base in (2, 4, 10) if math.log(high / low, base) <= 8), 100)
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
    axis.set_major_locator(ticker.FixedLocator([float(base) ** i for i in range(first, last + 1)]))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:.3g}"))


def risk_coverage(curves: dict[str, Curve], styles: dict[str, Style]) -> Drawing:
    """Risk of the most confident part, by its size; the band is the standard error of CVP's curve over seeds."""
    fig = figure(3.9, 3.6)
    axes = fig.subplots()
    for method, curve in curves.items():
        style, strong = styles[method], styles[method].role == "cvp"
        look = {"color": style.colour, "lw": 2.2 if strong else 1.4, "zorder": 4 if strong else 3}
        axes.plot(100 * curve.coverage, 100 * curve.risk, ls=style.dashes, label=method, **look)
        if strong and not np.isnan(curve.sem).any():
            low, high = 100 * (curve.risk - curve.sem), 100 * (curve.risk + curve.sem)
            axes.fill_between(100 * curve.coverage, low.clip(0), high, color=style.colour, alpha=0.16, lw=0)
    axes.set(xlim=(0, 100), xlabel="Coverage (% answered), higher is better")
    axes.set(ylabel="Risk (% of answers wrong), lower is better")
    axes.set_ylim(bottom=0)
    fig.legend(loc="outside lower center", ncols=min(3, len(curves)), handlelength=2.4, columnspacing=1.4)
    ends = "; ".join(f"{m} {100 * c.risk[-1]:.2g}% at full coverage" for m, c in curves.items())
    alt = f"Risk-coverage curves: {ends}"
    cells = tuple(
        (method, c, r, s) for method, curve in curves.items() for c, r, s in zip(*vars(curve).values(), strict=True)
    )
    header = ("method", "coverage", "risk", "risk_sem")
    return Drawing("risk-coverage", "Risk and coverage", alt, fig, ((alt, fig),), header, cells)


def reliability(bins: dict[str, Reliability], errors: dict[str, float], styles: dict[str, Style]) -> Drawing:
    """Accuracy by confidence, one small diagram per method; narrow bars at the bottom show where examples lie."""
    columns = min(4, len(bins))
    rows = math.ceil(len(bins) / columns)
    whole = figure(1.9 * columns, 2.0 * rows)
    grid = whole.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat
    panels = []
    for method, found in bins.items():
        single = figure(1.8, 2.0)
        for axes in (next(grid), single.subplots()):
            _reliability(axes, method, found, errors.get(method, math.nan), styles[method])
        axes.set(xlabel="Confidence", ylabel="Accuracy")
        alt = f"Reliability diagram of {method}: ECE {100 * errors.get(method, math.nan):.2f} ×100"
        panels.append((alt, single))
    for axes in grid:
        axes.set_visible(False)
    whole.supxlabel("Confidence", fontsize=8.5)
    whole.supylabel("Accuracy", fontsize=8.5)
    cells = tuple(
        (method, i + 1, c, a, s)
        for method, found in bins.items()
        for i, (c, a, s) in enumerate(zip(*vars(found).values(), strict=True))
    )
    header = ("method", "bin", "mean_confidence", "accuracy", "share")
    alt = "Reliability diagrams: " + ", ".join(bins)
    return Drawing("reliability", "Reliability diagrams", alt, whole, tuple(panels), header, cells)


def _reliability(axes: Any, method: str, found: Reliability, error: float, style: Style) -> None:
    width = 1 / len(found.share)
    left = np.arange(len(found.share)) * width
    axes.bar(left, found.share * 0.3, width * 0.9, align="edge", color=MUTED, alpha=0.28, lw=0)
    axes.plot([0, 1], [0, 1], color=MUTED, lw=0.8, ls=(0, (3, 2)))
    some = ~np.isnan(found.accuracy)
    # The gap is what the ECE averages: from each point to the diagonal.
    axes.vlines(
        found.confidence[some], found.confidence[some], found.accuracy[some], color=style.colour, alpha=0.45, lw=2
    )
    axes.plot(
        found.confidence[some],
        found.accuracy[some],
        "o",
        ms=3.6,
        color=style.colour,
        mec=SURFACE,
        mew=0.5,
        clip_on=False,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), aspect="equal")
    axes.set_title(method if math.isnan(error) else f"{method}, ECE {100 * error:.1f}", fontsize=8.5)
    axes.grid(color=FAINT)
