"""Figures over methods: certified coverage, risk-coverage curves, reliability, and metrics against time.

Each comes with its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from varprop.evaluation.arrays import Scores
from varprop.evaluation.methods import method_of
from varprop.evaluation.results import POINTS
from varprop.evaluation.thresholds import LEVEL
from varprop.report import shown_methods
from varprop.report.certified import CertifiedCoverage
from varprop.report.columns import NAMED, Column
from varprop.report.style import BETTER, FAINT, IDEAL, INK, MUTED, PALETTE, SURFACE, Style, drawable, figure, log_axis
from varprop.report.summary import Scope, Summary

_Value = TypeVar("_Value")
ByRun = Mapping[tuple[str, int], _Value]
"""By method and seed."""
TIME = NAMED["cost.plain"]
PLAIN = "mean"
BINS = 15
"""Of a reliability diagram, as of the ECE."""


class Tooltip(NamedTuple):
    """A point of a figure, and the text that pointing there shows."""

    axes: Axes
    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Drawing:
    """A figure of an experiment, what it shows in words, and its numbers."""

    experiment: str
    name: str
    title: str
    alt: str
    figure: Figure
    data: pd.DataFrame
    tooltips: tuple[Tooltip, ...] = ()


def certified_coverage(experiment: str, certified: CertifiedCoverage, styles: dict[str, Style]) -> Drawing:
    """A bar per method, the best on top: answered with a certified risk, with its standard error."""
    found = certified.found.sort_values("answered", ascending=False, kind="stable")
    fig = figure(4.2, 0.7 + 0.28 * len(found))
    axes = fig.subplots()
    places = range(len(found))
    colours = [styles[m].colour for m in found.index]
    axes.barh(places, found["answered"], 0.62, color=colours, zorder=2)
    axes.errorbar(found["answered"], places, xerr=found["answered_sem"], fmt="none", ecolor=INK, elinewidth=1, zorder=3)
    tooltips = []
    for y, (method, answered, sem, wrong) in enumerate(found.itertuples()):
        axes.annotate(f"{answered:.1f} %", (answered + sem, y), (5, 0), textcoords="offset points", va="center")
        text = f"{method_of(method).title}: answers {answered:.1f} ± {sem:.1f} %, of these {wrong:.2f} % are wrong"
        tooltips += [Tooltip(axes, answered * part, y, text) for part in (0.25, 0.5, 0.75, 1)]
    axes.set_yticks(places, [method_of(m).title for m in found.index])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlim(0, min(112, 1.18 * (found["answered"] + found["answered_sem"]).max()))
    axes.set_xlabel(f"Answered (%) at a certified risk of {100 * certified.risk:g} %, higher is better", loc="right")
    axes.grid(visible=False, axis="y")
    axes.grid(color=FAINT, axis="x")
    data = found.assign(risk=certified.risk, level=LEVEL).rename_axis("method").reset_index()
    title = "Answered at a certified risk"
    return Drawing(experiment, "certified", title, certified.headline, fig, data, tuple(tooltips))


def risk_coverage(experiment: str, curves: ByRun[Sequence[float]], styles: dict[str, Style]) -> list[Drawing]:
    """Risk of the most confident part, by its size; and beside it the difference to the plain network, by seed.

    Bands are the standard error of CVP over seeds.
    """
    if not curves:
        return []
    table = 100 * pd.DataFrame(curves, index=np.arange(1, POINTS + 1) / POINTS).T
    full = table[1.0].groupby(level=0, sort=False).mean()
    ends = "; ".join(f"{method_of(m).title} {risk:.2g}% at full coverage" for m, risk in full.items())
    drawn = [_curves(experiment, table, styles, "risk-coverage", "Risk and coverage", f"Risk-coverage curves: {ends}")]
    if PLAIN in table.index.get_level_values(0) and table.index.get_level_values(0).nunique() > 1:
        plain = table.xs(PLAIN).reindex(table.index.get_level_values(1)).set_axis(table.index)
        gaps = (table - plain).drop(PLAIN, level=0).dropna()
        title, alt = "Risk less that of the plain network", "Differences of risk-coverage curves to the plain network's"
        drawn.append(_curves(experiment, gaps, styles, "risk-difference", title, alt))
    return drawn


def _curves(experiment: str, table: pd.DataFrame, styles: dict[str, Style], name: str, title: str, alt: str) -> Drawing:
    """A curve per method, averaged over seeds; in percent and by coverage."""
    grouped = table.groupby(level=0, sort=False)
    mean, sem, seeds = grouped.mean(), grouped.sem(), grouped.size()
    fig = figure(3.9, 3.7)
    axes = fig.subplots()
    gaps, tooltips = name == "risk-difference", []
    for method, risk in mean.iterrows():
        style, strong = styles[method], method == "cvp"
        look = {"ls": style.dashes, "color": style.colour, "lw": 2.2 if strong else 1.4, "zorder": 4 if strong else 3}
        few = f" ({seeds[method]} of {seeds.max()} seeds)" if seeds[method] < seeds.max() else ""
        axes.plot(100 * risk.index, risk, label=f"{method_of(method).title}{few}", **look)
        if strong:
            low, high = (risk + side * sem.loc[method] for side in (-1, 1))
            axes.fill_between(100 * risk.index, low, high, color=style.colour, alpha=0.16, lw=0)
        for at in risk.index[3::4]:
            amount = f"{risk[at]:+.2f} points".replace("-", "−") if gaps else f"{risk[at]:.2f} %"
            text = f"{method_of(method).title}: {amount} at {100 * at:.0f} % coverage"
            tooltips.append(Tooltip(axes, 100 * at, risk[at], text))
    axes.set(xlim=(0, 100), xlabel="Coverage (% answered), higher is better")
    if gaps:
        axes.axhline(0, **IDEAL)
        axes.set(ylabel="Difference in risk (points), lower is better")
    else:
        axes.set(ylabel="Risk (% of answers wrong), lower is better")
        axes.set_ylim(bottom=0)
    fig.legend(loc="outside lower center", ncols=3, handlelength=2.4, columnspacing=1.4)
    data = pd.DataFrame({"risk": mean.stack() / 100, "risk_sem": sem.stack(future_stack=True) / 100})
    data = data.rename_axis(["method", "coverage"]).reset_index()
    return Drawing(experiment, name, title, alt, fig, data, tuple(tooltips))


def reliability(
    experiment: str, scores: Mapping[str, Sequence[Scores]], errors: Mapping[str, float], styles: dict[str, Style]
) -> Drawing | None:
    """Accuracy by confidence over all seeds, a diagram per method; narrow bars at the bottom show where examples lie.

    ``errors`` are the ECEs in percent.
    """
    if not scores:
        return None
    bins = {method: reliability_bins(kept) for method, kept in scores.items()}
    columns = min(4, len(bins))
    lines = math.ceil(len(bins) / columns)
    fig = figure(1.75 * columns, 1.95 * lines)
    grid = list(fig.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flat)
    tooltips = []
    for axes, (method, found) in zip(grid, bins.items(), strict=False):
        _diagram(axes, method_of(method).title, found, errors.get(method, math.nan), styles[method].colour)
        tooltips += [
            Tooltip(axes, x, y, f"{method_of(method).title}: {100 * y:.1f} % right at a confidence of {100 * x:.1f} %")
            for x, y in found.dropna()[["confidence", "accuracy"]].itertuples(index=False)
        ]
    for axes in grid[len(bins) :]:
        axes.set_visible(False)
    fig.supxlabel("Confidence", fontsize=8.5)
    fig.supylabel("Accuracy", fontsize=8.5)
    listed = "; ".join(f"{method_of(m).title} {errors.get(m, math.nan):.2f}" for m in bins)
    alt, title = f"Reliability diagrams, ECE ×100: {listed}", "Reliability diagrams (ECE ×100)"
    data = pd.concat(bins, names=["method", "bin"]).reset_index()
    return Drawing(experiment, "reliability", title, alt, fig, data, tuple(tooltips))


def reliability_bins(scores: Sequence[Scores]) -> pd.DataFrame:
    """Mean confidence, accuracy and share of the examples in bins of equal width; NaN for the means of an empty one."""
    from scipy.stats import binned_statistic  # here, because it takes long to import

    confidence, correctness = (np.concatenate([each[k] for each in scores]) for k in ("confidence", "correctness"))
    # As the ECE does it: edges in the confidence's own dtype, 1 in the last bin.
    edges = (np.arange(BINS + 1) / BINS).astype(confidence.dtype)
    means = binned_statistic(confidence, [confidence, correctness], bins=edges).statistic
    share = np.histogram(confidence, edges)[0] / len(confidence)
    return pd.DataFrame({"confidence": means[0], "accuracy": means[1], "share": share})


def _diagram(axes: Axes, title: str, found: pd.DataFrame, error: float, colour: str) -> None:
    left = np.arange(BINS) / BINS
    axes.bar(left, found["share"] * 0.3, 0.9 / BINS, align="edge", color=MUTED, alpha=0.28, lw=0)
    axes.plot([0, 1], [0, 1], color=MUTED, lw=0.8, ls=(0, (3, 2)))
    # The gap is what the ECE averages: from each point to the diagonal.
    axes.vlines(found["confidence"], found["confidence"], found["accuracy"], color=colour, alpha=0.45, lw=2)
    axes.plot(found["confidence"], found["accuracy"], "o", ms=3.6, color=colour, mec=SURFACE, mew=0.5, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), aspect="equal")
    axes.set_title(title if math.isnan(error) else f"{title}, {error:.1f}", fontsize=8)
    axes.grid(color=FAINT)


def pareto(summary: Summary, experiment: str, column: Column, styles: dict[str, Style]) -> Drawing | None:
    """Relative time on x, a metric on y; green is where a method would improve on the mean network and Monte Carlo."""
    points = against_time(summary, (experiment,), column)
    if len(points) < 2:
        return None
    fig = figure(3.9, 3.4)
    tooltips = draw_pareto(fig.subplots(), points, column, styles)
    fig.legend(loc="outside lower center", ncols=3, handletextpad=0.3, columnspacing=1.4)
    listed = "; ".join(
        f"{method_of(m).title} {column.show(y)} at {x:.2g}" for m, x, y in points[["time", "value"]].itertuples()
    )
    alt = f"{column.label} against time in plain passes on {summary.title(experiment)}: {listed}"
    data = points.rename(columns={"value": column.key, "value_sem": f"{column.key}_sem"}).reset_index()
    name, title = f"pareto-{column.key.replace('@', '')}", f"{column.title} and time"
    return Drawing(experiment, name, title, alt, fig, data, tooltips)


def against_time(summary: Summary, scope: Scope, column: Column) -> pd.DataFrame:
    """Time and metric of each method that has both."""
    if not {TIME, column} <= set(summary.columns):
        return pd.DataFrame(columns=["time", "time_sem", "value", "value_sem"])
    found = summary.estimates(scope)
    values = {"time": found.mean[TIME.key], "time_sem": found.sem[TIME.key]}
    values |= {"value": found.mean[column.key], "value_sem": found.sem[column.key]}
    points = pd.DataFrame(values).loc[list(shown_methods.without_variants(summary.methods_in(scope)))]
    return points[np.isfinite(points["value"]) & points["time"].map(drawable)]


def draw_pareto(axes: Axes, points: pd.DataFrame, column: Column, styles: dict[str, Style]) -> tuple[Tooltip, ...]:
    """Methods have a marker each; those of Monte Carlo are joined, with their numbers of samples beside them."""
    samples = points.index.map(lambda slug: method_of(slug).samples or 0)
    sampled = points[samples > 0].assign(samples=samples[samples > 0]).sort_values("samples")
    tooltips = []
    if len(sampled):
        axes.plot(sampled["time"], sampled["value"], color=PALETTE["mc2"], lw=1.1, zorder=2)
        for x, y, size in sampled[["time", "value", "samples"]].itertuples(index=False):
            axes.annotate(f"{size:.0f}", (x, y), (4, 4), textcoords="offset points", fontsize=7.5, color=INK)
    for slug, point in points.iterrows():
        style, title = styles[slug], method_of(slug).title
        last = len(sampled) and slug == sampled.index[-1]
        label = title if not method_of(slug).samples else "Monte Carlo" if last else None
        axes.errorbar(
            *(point["time"], point["value"], np.nan_to_num(point["value_sem"])),
            fmt=style.marker,
            color=style.colour,
            label=label,
            ms=7.5 if slug == "cvp" else 6.5,
            mec=SURFACE,
            mew=0.8,
            elinewidth=1.1,
            zorder=4 if slug == "cvp" else 3,
        )
        amount = f"{column.show(point['value'], point['value_sem'])} {column.unit}".rstrip()
        text = f"{title}: {amount} at {point['time']:.3g} plain passes"
        tooltips.append(Tooltip(axes, point["time"], point["value"], text))
    log_axis(axes.xaxis, list(points["time"]))
    axes.margins(y=0.16)
    base = points[(samples > 0) | (points.index == PLAIN)]
    _shade(axes, pareto_front(base if len(base) else points, column.higher), column.higher)
    axes.set(xlabel="Time (plain passes), lower is better", ylabel=column.label)
    return tuple(tooltips)


def pareto_front(points: pd.DataFrame, higher: bool) -> pd.DataFrame:
    """The points whose value no other one beats at the same time or less, by rising time."""
    order = points.sort_values(["time", "value"], ascending=[True, not higher])
    value = order["value"] * (-1 if higher else 1)
    return order[value < value.cummin().shift(fill_value=math.inf)]


def _shade(axes: Axes, front: pd.DataFrame, higher: bool) -> None:
    """The staircase through the front, and all that lies beyond it."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    worst, ideal = (low, high) if higher else (high, low)
    xs = [left, *front["time"], right]
    ys = [worst, *front["value"], front["value"].iloc[-1]]
    axes.fill_between(xs, ys, ideal, step="post", color=BETTER, alpha=0.13, lw=0, zorder=0)
    axes.step(xs[1:], ys[1:], where="post", color=BETTER, lw=1, alpha=0.7, zorder=1)
    axes.set(xlim=(left, right), ylim=(low, high))
