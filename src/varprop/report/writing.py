"""From a results folder to a report: figures, tables and the HTML file, all written to one folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from varprop.errors import ResultsError
from varprop.report import curves, figures, html, layers, tables
from varprop.report.columns import COLUMNS
from varprop.report.figures import Drawing
from varprop.report.panel import panel
from varprop.report.results import Results, Scores, read_results, slug
from varprop.report.style import Style, drawing_style, styles
from varprop.report.summary import Summary
from varprop.report.svg import save


def write_report(folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of a results folder and return the path of its HTML file.

    ``out`` is a folder, by default ``report`` in the results folder, or the name of an ``.html`` file. Figures (PNG,
    PDF, CSV) and tables go to ``figures`` and ``tables`` beside the file, which itself needs none of them.
    """
    results = read_results(folder)
    target = results.folder / "report" if out is None else Path(out)
    target = target if target.suffix == ".html" else target / "report.html"
    rows, problems = results.rows, results.problems
    summary = Summary(rows)
    look = styles(summary.methods)
    with drawing_style():
        drawings = {experiment: draw(results, summary, experiment, look) for experiment in summary.experiments}
        text = html.page(summary, drawings, panel(results, summary, look), look, problems)
        try:
            (target.parent / "figures").mkdir(parents=True, exist_ok=True)
            for experiment, found in drawings.items():
                for drawing in found:
                    save(drawing, target.parent / "figures", slug(experiment))
            _save_tables(summary, target.parent / "tables")
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ResultsError(f"cannot write {target}: {error.strerror or error}; choose another folder") from error
    return target


def draw(results: Results, summary: Summary, experiment: str, look: dict[str, Style]) -> list[Drawing]:
    """All figures of an experiment that its rows have the numbers for."""
    metrics = [column for column in summary.columns if not column.key.startswith("cost.")]
    found = [figures.pareto(summary, experiment, column, look) for column in metrics]
    scores: dict[str, list[Scores]] = {}
    for method in summary.methods_in(experiment):
        kept = [s for s in map(results.scores, summary.of(experiment, method)) if s is not None]
        if kept:
            scores[method] = kept
    if scores:
        found.append(figures.risk_coverage({m: curves.risk_coverage(kept) for m, kept in scores.items()}, look))
    # A confidence that is no probability has no reliability diagram.
    calibrated = {m: kept for m, kept in scores.items() if all(_unit(s["confidence"]) for s in kept)}
    if calibrated:
        column = next(c for c in COLUMNS if c.key == "ece")
        errors = {m: summary.estimate(experiment, m, column).mean / column.scale for m in calibrated}
        bins = {m: curves.reliability(kept) for m, kept in calibrated.items()}
        found.append(figures.reliability(bins, errors, look))
    rows = [row for row in summary.rows if row.row == experiment]
    found += [layers.scales(rows, look), *layers.fidelity(rows, look)]
    return [drawing for drawing in found if drawing is not None]


def _unit(confidence: np.ndarray) -> bool:
    return bool(((confidence >= 0) & (confidence <= 1)).all())


def _save_tables(summary: Summary, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    named = {}
    for experiment in summary.experiments:
        methods = summary.methods_in(experiment)
        named[slug(experiment)] = tables.results(summary, experiment)
        named[f"{slug(experiment)}-differences"] = tables.differences(summary, experiment, tables.reference(methods))
    if len(summary.experiments) > 1:
        named["average"] = tables.macro(summary)
    for name, table in named.items():
        for kind, text in (
            ("txt", table.text()),
            ("md", table.markdown()),
            ("csv", table.csv()),
            ("tex", table.latex()),
        ):
            (folder / f"{name}.{kind}").write_text(f"{text.rstrip()}\n", encoding="utf-8")
