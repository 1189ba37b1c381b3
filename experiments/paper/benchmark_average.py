"""The paper's six benchmarks together: each by itself or by what stands in for it, averaged, in the paper's layout."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure

from experiments.paper.published import Lookup, ablation, averaged, benchmarks, beside
from experiments.paper.verdicts import agreement, verdict
from varprop.evaluation.results import Results
from varprop.report import shown_methods, tables
from varprop.report.columns import NAMED, Column
from varprop.report.figures import Drawing, against_time, draw_pareto
from varprop.report.page import Group, Section
from varprop.report.style import figure, styles
from varprop.report.summary import Scope, Summary
from varprop.report.tables import Table, words

GRID = ("accuracy", "ece", "ace", "nll", "brier", "aurc", "c@0.5", "c@1", "c@5", "phi@10", "phi@50", "phi@100")
"""The panels of the paper's plots against time."""
ACROSS = 3
FEWEST = 2
"""Benchmarks that have an average."""


def chosen(summary: Summary) -> dict[str, str | None]:
    """The experiment for each benchmark of the paper: it, or else what stands in for it, or else nothing."""
    found: dict[str, str | None] = dict.fromkeys(benchmarks())
    for experiment in sorted(summary.experiments, key=lambda each: bool(summary.setting(each, "stand_in"))):
        benchmark = summary.setting(experiment, "paper")
        if benchmark in found and found[benchmark] is None:
            found[benchmark] = experiment
    return found


def averages(summary: Summary) -> list[Table]:
    """What is averaged, the tables of the average, and our order of the methods beside the paper's.

    Nothing where there are too few benchmarks.
    """
    rows = chosen(summary)
    there = {benchmark: experiment for benchmark, experiment in rows.items() if experiment}
    scope: Scope = tuple(there.values())
    if len(scope) < FEWEST:
        return []
    known: dict[str, Lookup] = dict.fromkeys(("main", "extended"), functools.partial(averaged, list(there)))
    found = [listing(summary, rows)]
    for table in tables.kinds(summary, scope):
        if table.kind != "ablation":
            shown = beside(table, known[table.kind], "") if table.kind in known else table
            title = f"Average of {len(there)} of {len(rows)} benchmarks: {table.kind} table"
            found.append(replace(shown, kind=f"macro-{table.kind}", title=title))
    found += ablations(summary, scope)
    judged = verdict(summary, scope), agreement(summary, scope)
    return [*found, *(replace(table, kind=f"macro-{table.kind}") for table in judged if table)]


def ablations(summary: Summary, scope: Scope) -> list[Table]:
    """Of the benchmarks that have all variants which any of them has; beside the paper's, if these are all six."""
    known = {e: set(shown_methods.ablated(summary.methods_in((e,)))) for e in scope}
    ablated = tuple(e for e in scope if known[e] and known[e] == set().union(*known.values()))
    if len(ablated) < FEWEST:
        return []
    every = len(benchmarks())
    title = f"Average of {len(ablated)} of {every} benchmarks: ablation table{_which(summary, ablated, scope)}"
    drawn = [table for table in tables.kinds(summary, ablated) if table.kind == "ablation"]
    drawn = [beside(table, ablation, "") if len(ablated) == every else table for table in drawn]
    return [replace(table, kind="macro-ablation", title=title) for table in drawn]


def _which(summary: Summary, some: Scope, scope: Scope) -> str:
    return "" if some == scope else f", of {', '.join(map(summary.title, some))}"


def macro(results: Results, summary: Summary) -> Section | None:
    rows = chosen(summary)
    found = averages(summary)
    if not found:
        return None
    missing = [benchmark for benchmark, experiment in rows.items() if not experiment]
    absent = f" Missing: {', '.join(missing)}." if missing else ""
    note = (
        f"{len(rows) - len(missing)} of the paper's {len(rows)} benchmarks, some by stand-ins, averaged as the paper "
        f"averages them, with the paper's average of the same ones below.{absent} Where stand-ins are among them, the "
        "order of the methods can be compared with the paper's, and the level cannot."
    )
    drawn = grid(summary, tuple(experiment for experiment in rows.values() if experiment))
    parts = [*(Group("", tables=[table]) for table in found), *([Group("", drawings=[drawn])] if drawn else [])]
    return Section("macro", "The paper's benchmarks together", note, parts)


def listing(summary: Summary, rows: dict[str, str | None]) -> Table:
    """Which experiment is taken for which benchmark."""
    lines = []
    for benchmark, experiment in rows.items():
        if experiment is None:
            lines.append((benchmark, "missing", "", ""))
            continue
        kind = "stand-in" if summary.setting(experiment, "stand_in") else "the benchmark itself"
        lines.append((benchmark, summary.title(experiment), kind, str(len(summary.seeds(experiment)))))
    cells = pd.DataFrame(lines, columns=["Benchmark of the paper", "Here", "Which is", "Seeds"])
    return words("macro-rows", "average", "What is averaged", cells)


def pareto_panels(
    summary: Summary, panels: Sequence[tuple[str, Column, pd.DataFrame]], across: int, height: float
) -> Figure:
    """A metric against time in each panel, with a title if it has one, and one legend below all."""
    lines = math.ceil(len(panels) / across)
    fig = figure(3.3 * across, height * lines + 0.3)
    grid, look = list(fig.subplots(lines, across, squeeze=False).flat), styles(summary.methods)
    for axes, (title, column, points) in zip(grid, panels, strict=False):
        draw_pareto(axes, points, column, look)
        if title:
            axes.set_title(title)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    fig.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return fig


def grid(summary: Summary, scope: Scope) -> Drawing | None:
    """Every metric of the paper's plots against time, a panel each, of the experiments that were timed."""
    timed = tuple(experiment for experiment in scope if any(row.cost for row in summary.of(experiment)))
    if len(timed) < FEWEST:
        return None
    columns = [NAMED[key] for key in GRID if NAMED[key] in summary.columns]
    found = {column: points for column in columns if len(points := against_time(summary, timed, column)) > 1}
    if not found:
        return None
    fig = pareto_panels(summary, [("", column, points) for column, points in found.items()], ACROSS, 2.6)
    of = f"average of {len(timed)} benchmarks{_which(summary, timed, scope)}"
    alt = f"{', '.join(column.title for column in found)} against time, {of}"
    data = pd.concat({column.key: points for column, points in found.items()}, names=["metric", "method"])
    return Drawing("all", "macro", f"All metrics and time: {of}", alt, fig, data.reset_index())
