"""Plots of a metric against time, one per experiment; and the teaser, which has all experiments side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from varprop.report import lineup
from varprop.report.columns import COLUMNS, Column
from varprop.report.figures import Cells, Drawing, log_axis
from varprop.report.labels import Box, place
from varprop.report.style import BETTER, INK, PALETTE, SURFACE, Style, figure, samples_of
from varprop.report.summary import Estimate, Summary, pareto_front

TIME = next(column for column in COLUMNS if column.key == "cost.sample")
AURC = next(column for column in COLUMNS if column.key == "aurc")
_ACROSS = 3  # panels of the teaser in a line


class Point(NamedTuple):
    """A method's time and metric."""

    method: str
    cost: Estimate
    value: Estimate

    @property
    def at(self) -> tuple[float, float]:
        return self.cost.mean, self.value.mean


def pareto(summary: Summary, experiment: str, column: Column, styles: dict[str, Style]) -> Drawing | None:
    """Relative time on x, a metric on y; green is where a method would improve on the mean network and Monte Carlo."""
    points = _points_of(summary, experiment, column, lineup.unvaried)
    if len(points) < 2:
        return None
    fig = figure(3.9, 3.1)
    _panel(fig.subplots(), points, column, styles)()
    title, alt = f"{column.title} and time", _alt(summary, experiment, column, points)
    name = f"pareto-{column.key.replace('@', '')}"
    return Drawing(name, title, alt, fig, ((alt, fig),), ("method", *_header(column)), _cells(points))


def teaser(summary: Summary, styles: dict[str, Style]) -> Drawing | None:
    """AURC against time, a panel for each experiment: the mean network, Monte Carlo, Streamlining and CVP."""
    found = {e: _points_of(summary, e, AURC, _few) for e in summary.experiments}
    found = {experiment: points for experiment, points in found.items() if len(points) > 1}
    if not found:
        return None
    across = 2 if len(found) == 4 else min(_ACROSS, len(found))
    down = math.ceil(len(found) / across)
    whole = figure(3.3 * across, 3.0 * down)
    grid = whole.subplots(down, across, squeeze=False).flat
    panels, cells, names = [], [], []
    for experiment, points in found.items():
        single = figure(3.6, 3.0)
        for axes in (next(grid), single.subplots()):
            axes.set_title(summary.title(experiment))
            names.append(_panel(axes, points, AURC, styles))
        panels.append((_alt(summary, experiment, AURC, points), single))
        cells += [(experiment, *line) for line in _cells(points)]
    for axes in grid:
        axes.set_visible(False)
    for write in names:
        write()
    alt = "AURC against relative time: " + ", ".join(map(summary.title, found))
    header = ("experiment", "method", *_header(AURC))
    return Drawing("teaser", "AURC and time", alt, whole, tuple(panels), header, tuple(cells))


def _few(methods: Sequence[str]) -> tuple[str, ...]:
    return tuple(m for m in lineup.unvaried(methods) if m in ("mean", "Streamlining", "CVP") or samples_of(m))


def _points_of(summary: Summary, experiment: str, column: Column, pick: Any) -> list[Point]:
    estimate = summary.estimate
    methods = pick(summary.methods_in(experiment))
    found = [Point(m, estimate(experiment, m, TIME), estimate(experiment, m, column)) for m in methods]
    return [point for point in found if all(map(math.isfinite, point.at))]


def _header(column: Column) -> tuple[str, ...]:
    return "relative_time", "relative_time_sem", column.key, f"{column.key}_sem", "seeds"


def _cells(points: Sequence[Point]) -> Cells:
    return tuple((m, c.mean, c.sem, v.mean, v.sem, v.count) for m, c, v in points)


def _alt(summary: Summary, experiment: str, column: Column, points: Sequence[Point]) -> str:
    listed = "; ".join(f"{m} {column.show(v.mean)} at {c.mean:.2g}" for m, c, v in points)
    return f"{column.label} against relative time on {summary.title(experiment)}: {listed}"


def _panel(axes: Any, points: Sequence[Point], column: Column, styles: dict[str, Style]) -> Callable[[], None]:
    """Draw all but the methods' names; returns what writes these, once all panels are drawn."""
    for method, cost, value in points:
        style = styles[method]
        look = {"markersize": 7.5 if style.role == "cvp" else 6.5, "mec": SURFACE, "mew": 0.8}
        error = 0.0 if math.isnan(value.sem) else value.sem
        axes.errorbar(
            cost.mean, value.mean, error, fmt=style.marker, color=style.colour, elinewidth=1.1, zorder=3, **look
        )
    log_axis(axes.xaxis, [point.cost.mean for point in points])
    axes.margins(y=0.16)
    sampled = sorted((p for p in points if samples_of(p.method)), key=lambda p: samples_of(p.method) or 0)
    path = [point.at for point in sampled]
    axes.plot([x for x, _ in path], [y for _, y in path], color=PALETTE["mc2"][0], lw=1.1, alpha=0.55, zorder=2)
    base = [p.at for p in points if p.method == "mean" or samples_of(p.method)] or [p.at for p in points]
    front = [base[i] for i in pareto_front(base, column.higher)]
    _shade(axes, front, column.higher)
    axes.set_xlabel("Relative time (1 = one MC sample)")
    axes.set_ylabel(column.label)

    def avoid() -> list[Box]:
        return _boxes(axes, points) + _stairs(axes, front) + _along(axes, path)

    names, at = [point.method for point in points], [point.at for point in points]

    def write() -> None:
        place(axes, names, at, avoid, fontsize=8, color=INK)

    return write


def _boxes(axes: Any, points: Sequence[Point]) -> list[Box]:
    """Markers and error bars, as boxes that labels should not cover."""
    scale = 72 / axes.figure.dpi
    found = []
    for point in points:
        x, y = point.at
        sem = 1e-12 if math.isnan(point.value.sem) else max(point.value.sem, 1e-12)
        centre, top = axes.transData.transform([(x, y), (x, y + sem)]) * scale
        bar = abs(top[1] - centre[1])
        found.append((centre[0] - 1, centre[1] - bar, centre[0] + 1, centre[1] + bar))
        found.append((centre[0] - 5, centre[1] - 5, centre[0] + 5, centre[1] + 5))
    return found


def _shade(axes: Any, front: Sequence[tuple[float, float]], higher: bool) -> None:
    """The staircase through the front, and all that lies beyond it."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    worst, ideal = (low, high) if higher else (high, low)
    xs = [left, *(x for x, _ in front), right]
    ys = [worst, *(y for _, y in front)]
    ys.append(ys[-1])
    axes.fill_between(xs, ys, ideal, step="post", color=BETTER, alpha=0.13, lw=0, zorder=0)
    axes.step(xs[1:], ys[1:], where="post", color=BETTER, lw=1, alpha=0.7, zorder=1)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def _stairs(axes: Any, front: Sequence[tuple[float, float]]) -> list[Box]:
    """The line along the front, as thin boxes that labels should not cover."""
    corners = [*front, (axes.get_xlim()[1], front[-1][1])]
    at = [tuple(72 / axes.figure.dpi * c for c in axes.transData.transform(corner)) for corner in corners]
    flat = [(a[0], a[1] - 1, b[0], a[1] + 1) for a, b in pairwise(at)]
    return flat + [(b[0] - 1, min(a[1], b[1]), b[0] + 1, max(a[1], b[1])) for a, b in pairwise(at)]


def _along(axes: Any, path: Sequence[tuple[float, float]]) -> list[Box]:
    """A line from point to point, as small boxes."""
    if len(path) < 2:
        return []
    at = axes.transData.transform(path) * 72 / axes.figure.dpi
    steps = [a + (b - a) * share for a, b in pairwise(at) for share in (0.25, 0.5, 0.75)]
    return [(x - 1, y - 1, x + 1, y + 1) for x, y in steps]
