"""The report with what is about the paper: its numbers beside ours, verdicts on its claims, its figures."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from experiments.paper.benchmark_average import macro, pareto_panels
from experiments.paper.block_scales import block_scales
from experiments.paper.norms import SYNTHETIC, errors, load_norms, scatter
from experiments.paper.published import benchmark_of, compared
from experiments.paper.verdicts import agreement, order, verdict
from varprop.evaluation.methods import method_of
from varprop.evaluation.results import Results
from varprop.report import sections, shown_methods, tables, write_report
from varprop.report.columns import NAMED
from varprop.report.figures import Drawing, against_time
from varprop.report.page import Group, Section
from varprop.report.sections import SECTIONS, Maker
from varprop.report.summary import Scope, Summary

AURC = NAMED["aurc"]


def write_paper_report(folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """``write_report`` with the paper's sections."""
    return write_report(folder, out, PAPER_SECTIONS)


def outcomes(results: Results, summary: Summary) -> Section:
    """The tables with the paper's numbers; experiments that it has are averaged by themselves too."""
    drawn = teaser(summary)
    parts = [Group(drawings=[drawn])] if drawn else []
    for scope in scopes(summary):
        chosen = [t for t in tables.kinds(summary, scope) if t.kind != "ablation" or scope in summary.scopes]
        parts += sections.outcome(summary, scope, [compared(summary, scope, table) for table in chosen])
    return Section("results", "Results", parts=parts)


def scopes(summary: Summary) -> list[Scope]:
    ours = tuple(experiment for experiment in summary.experiments if benchmark_of(summary, experiment))
    return [*summary.scopes, *([ours] if 1 < len(ours) < len(summary.experiments) else [])]


def verdicts(results: Results, summary: Summary) -> Section | None:
    """In words: the last is open, others are folded."""
    note = (
        "Better or worse by more than one standard error of the differences over seeds. The order of the ablation is "
        "by AURC, beside the order in the paper's average of six benchmarks; that of all methods is compared by "
        "Kendall's τ in every metric."
    )
    parts = []
    judges = ("One against all", verdict), ("Order of the ablation", order), ("Order of the methods", agreement)
    for title, judged in judges:
        found = [table for scope in summary.scopes if (table := judged(summary, scope)) is not None]
        parts += [Group(title)] if found else []
        parts += [Group(table.title, tables=[table], folded=table is not found[-1]) for table in found]
    return Section("verdicts", "Verdicts", note, parts) if parts else None


def inside(results: Results, summary: Summary) -> Section | None:
    """Scales by block, and LayerNorm's rules against sampling."""
    note = (
        "What calibration learned, by block: bands are the standard deviation over seeds. And how near rules for "
        "LayerNorm come to sampling, a dot per activation."
    )
    parts = []
    for experiment in summary.experiments:
        methods = shown_methods.scaled(summary.methods_in((experiment,)))
        norms = load_norms(results, experiment)
        drawn = [
            block_scales(experiment, summary.of(experiment), methods),
            scatter(experiment, norms, "LayerNorm of traced inputs"),
        ]
        parts += sections.figure_parts(summary, experiment, drawn)
        parts += [Group("LayerNorm of traced inputs", tables=[errors(experiment, norms)], folded=True)] if norms else []
    synthetic = load_norms(results, SYNTHETIC)
    if synthetic:
        drawn = [scatter(SYNTHETIC, synthetic, "LayerNorm of synthetic inputs")]
        title = "LayerNorm of synthetic inputs"
        parts.append(Group(title, tables=[errors(SYNTHETIC, synthetic)], drawings=[d for d in drawn if d], folded=True))
    return Section("blocks", "Blocks and norms", note, parts) if parts else None


def teaser(summary: Summary) -> Drawing | None:
    """AURC against time, a panel for each experiment: the mean network, Monte Carlo, Streamlining and CVP."""
    found = {e: points[_few(points)] for e in summary.experiments if len(points := against_time(summary, (e,), AURC))}
    found = {experiment: points for experiment, points in found.items() if len(points) > 1}
    if len(found) < 2:
        return None  # of one experiment it is the first of the plots against time
    panels = [(summary.title(experiment), AURC, points) for experiment, points in found.items()]
    fig = pareto_panels(summary, panels, 2 if len(found) in (2, 4) else 3, 3.0)
    alt = f"AURC against relative time: {', '.join(map(summary.title, found))}"
    data = pd.concat(found, names=["experiment", "method"]).reset_index()
    return Drawing("all", "teaser", "AURC and time", alt, fig, data)


def _few(points: pd.DataFrame) -> list[bool]:
    main = ("mean", "streamlining", "cvp")
    return [slug in main or method_of(slug).samples is not None for slug in points.index]


_CERTIFIED, _OUTCOMES, *_REST, _RUNS = SECTIONS
PAPER_SECTIONS: tuple[Maker, ...] = (_CERTIFIED, outcomes, macro, verdicts, *_REST, inside, _RUNS)
