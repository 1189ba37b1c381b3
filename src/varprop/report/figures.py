"""Figures over methods: risk and coverage, reliability, and metrics against time. Each comes with its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from varprop.evaluation.curves import Reliability
from varprop.evaluation.methods import method_of
from varprop.evaluation.results import POINTS, Row
from varprop.report import lineup
from varprop.report.columns import NAMED, Column
from varprop.report.style import BETTER, FAINT, INK, MUTED, PALETTE, SURFACE, Style, drawable, figure, log_axis
from varprop.report.summary import Scope, Summary

TIME = NAMED["cost.sample"]


@dataclass(frozen=True)
class Drawing:
    """A figure of an experiment, what it shows in words, and its numbers."""

    experiment: str
    name: str
    title: str
    alt: str
    figure: Figure
    data: pd.DataFrame


def risk_coverage(experiment: str, rows: Sequence[Row], styles: dict[str, Style]) -> Drawing | None:
    """Risk of the most confident part, by its size; the band is the standard error of CVP's curve over seeds."""
    curves = {(row.method, row.seed): row.curve for row in rows if row.curve is not None}
    if not curves:
        return None
    grouped = pd.DataFrame(curves, index=np.arange(1, POINTS + 1) / POINTS).T.groupby(level=0, sort=False)
    mean, sem = grouped.mean(), grouped.sem()
    fig = figure(3.9, 3.7)
    axes = fig.subplots()
    for method, risk in mean.iterrows():
        style, strong = styles[method], method == "cvp"
        axes.plot(
            *(100 * risk.index, 100 * risk),
            ls=style.dashes,
            color=style.colour,
            label=method_of(method).title,
            lw=2.2 if strong else 1.4,
            zorder=4 if strong else 3,
        )
        if strong:
            low, high = (100 * (risk + side * sem.loc[method]).clip(0) for side in (-1, 1))
            axes.fill_between(100 * risk.index, low, high, color=style.colour, alpha=0.16, lw=0)
    axes.set(xlim=(0, 100), xlabel="Coverage (% answered), higher is better")
    axes.set(ylabel="Risk (% of answers wrong), lower is better")
    axes.set_ylim(bottom=0)
    fig.legend(loc="outside lower center", ncols=3, handlelength=2.4, columnspacing=1.4)
    ends = "; ".join(f"{method_of(m).title} {100 * risk:.2g}% at full coverage" for m, risk in mean[1.0].items())
    data = pd.DataFrame({"risk": mean.stack(), "risk_sem": sem.stack(future_stack=True)})
    data = data.rename_axis(["method", "coverage"]).reset_index()
    return Drawing(experiment, "risk-coverage", "Risk and coverage", f"Risk-coverage curves: {ends}", fig, data)


def reliability(
    experiment: str, bins: dict[str, Reliability], errors: pd.Series, styles: dict[str, Style]
) -> Drawing | None:
    """Accuracy by confidence, one small diagram per method; narrow bars at the bottom show where examples lie."""
    if not bins:
        return None
    columns = min(4, len(bins))
    fig = figure(1.75 * columns, 1.95 * math.ceil(len(bins) / columns))
    grid = list(fig.subplots(math.ceil(len(bins) / columns), columns, squeeze=False, sharex=True, sharey=True).flat)
    for axes, (method, found) in zip(grid, bins.items(), strict=False):
        _diagram(axes, method_of(method).title, found, errors.get(method, math.nan), styles[method].colour)
    for axes in grid[len(bins) :]:
        axes.set_visible(False)
    fig.supxlabel("Confidence", fontsize=8.5)
    fig.supylabel("Accuracy", fontsize=8.5)
    data = pd.concat(
        {method: pd.DataFrame(vars(found)).rename_axis("bin") for method, found in bins.items()}, names=["method"]
    )
    told = "; ".join(f"{method_of(m).title} {errors.get(m, math.nan):.2f}" for m in bins)
    alt = f"Reliability diagrams, ECE ×100: {told}"
    return Drawing(experiment, "reliability", "Reliability diagrams (ECE ×100)", alt, fig, data.reset_index())


def _diagram(axes: Axes, title: str, found: Reliability, error: float, colour: str) -> None:
    width = 1 / len(found.share)
    left = np.arange(len(found.share)) * width
    axes.bar(left, found.share * 0.3, width * 0.9, align="edge", color=MUTED, alpha=0.28, lw=0)
    axes.plot([0, 1], [0, 1], color=MUTED, lw=0.8, ls=(0, (3, 2)))
    # The gap is what the ECE averages: from each point to the diagonal.
    axes.vlines(found.confidence, found.confidence, found.accuracy, color=colour, alpha=0.45, lw=2)
    axes.plot(found.confidence, found.accuracy, "o", ms=3.6, color=colour, mec=SURFACE, mew=0.5, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), aspect="equal")
    axes.set_title(title if math.isnan(error) else f"{title}, {error:.1f}", fontsize=8)
    axes.grid(color=FAINT)


def pareto(summary: Summary, experiment: str, column: Column, styles: dict[str, Style]) -> Drawing | None:
    """Relative time on x, a metric on y; green is where a method would improve on the mean network and Monte Carlo."""
    points = against_time(summary, (experiment,), column)
    if len(points) < 2:
        return None
    fig = figure(3.9, 3.4)
    draw_pareto(fig.subplots(), points, column, styles)
    fig.legend(loc="outside lower center", ncols=3, handletextpad=0.3, columnspacing=1.4)
    listed = "; ".join(
        f"{method_of(m).title} {column.show(y)} at {x:.2g}" for m, x, y in points[["time", "value"]].itertuples()
    )
    alt = f"{column.label} against relative time on {summary.title(experiment)}: {listed}"
    data = points.rename(columns={"value": column.key, "value_sem": f"{column.key}_sem"}).reset_index()
    return Drawing(experiment, f"pareto-{column.key.replace('@', '')}", f"{column.title} and time", alt, fig, data)


def against_time(summary: Summary, scope: Scope, column: Column) -> pd.DataFrame:
    """Time and metric of each method that has both."""
    if not {TIME, column} <= set(summary.columns):
        return pd.DataFrame(columns=["time", "time_sem", "value", "value_sem"])
    found = summary.estimates(scope)
    values = {"time": found.mean[TIME.key], "time_sem": found.sem[TIME.key]}
    values |= {"value": found.mean[column.key], "value_sem": found.sem[column.key]}
    points = pd.DataFrame(values).loc[list(lineup.unvaried(summary.methods_in(scope)))]
    return points[np.isfinite(points["value"]) & points["time"].map(drawable)]


def draw_pareto(axes: Axes, points: pd.DataFrame, column: Column, styles: dict[str, Style]) -> None:
    """Methods have a marker each; those of Monte Carlo are joined, with their numbers of samples beside them."""
    samples = points.index.map(lambda slug: method_of(slug).samples or 0)
    sampled = points[samples > 0].assign(samples=samples[samples > 0]).sort_values("samples")
    for slug, point in points[samples == 0].iterrows():
        style = styles[slug]
        _mark(
            axes, point.to_frame().T, style.marker, style.colour, method_of(slug).title, 7.5 if slug == "cvp" else 6.5
        )
    if len(sampled):
        _mark(axes, sampled, "v-", PALETTE["mc2"], "Monte Carlo", 6)
        for x, y, size in sampled[["time", "value", "samples"]].itertuples(index=False):
            axes.annotate(f"{size:.0f}", (x, y), (4, 4), textcoords="offset points", fontsize=7.5, color=INK)
    log_axis(axes.xaxis, list(points["time"]))
    axes.margins(y=0.16)
    base = points[(samples > 0) | (points.index == "mean")]
    _shade(axes, pareto_front(base if len(base) else points, column.higher), column.higher)
    axes.set(xlabel="Relative time (1 = one MC sample)", ylabel=column.label)


def _mark(axes: Axes, points: pd.DataFrame, form: str, colour: str, label: str, size: float) -> None:
    axes.errorbar(
        *(points["time"], points["value"], points["value_sem"].fillna(0)),
        fmt=form,
        color=colour,
        label=label,
        ms=size,
        mec=SURFACE,
        mew=0.8,
        lw=1.1,
        elinewidth=1.1,
        zorder=3,
    )


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
