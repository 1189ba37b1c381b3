"""From a results folder to a report: figures, tables and the HTML file, all written to one folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from varprop.errors import ResultsError
from varprop.evaluation import curves
from varprop.evaluation.files import Scores, slug
from varprop.evaluation.results import Results, read_results
from varprop.evaluation.rows import Row
from varprop.report import blocks, figures, html, layers, lineup, pareto, scatter, tables, verdicts
from varprop.report.columns import COLUMNS
from varprop.report.figures import Drawing
from varprop.report.norms import SYNTHETIC
from varprop.report.panel import panel
from varprop.report.style import Style, drawing_style, styles
from varprop.report.summary import Summary
from varprop.report.svg import csv_text, save


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
    look = styles(list(dict.fromkeys((*summary.methods, *_ruled(results, summary)))))
    with drawing_style():
        drawings = {experiment: draw(results, summary, experiment, look) for experiment in summary.experiments}
        made_up = scatter.norms(results.norms(SYNTHETIC), "LayerNorm of made-up inputs", look)
        if made_up is not None:
            drawings[SYNTHETIC] = [made_up]
        opening = pareto.teaser(summary, look)
        text = html.page(summary, drawings, panel(results, summary, look), look, problems, opening)
        try:
            figures_in = target.parent / "figures"
            figures_in.mkdir(parents=True, exist_ok=True)
            for experiment, found in drawings.items():
                for drawing in found:
                    save(drawing, figures_in, slug(experiment))
            if opening is not None:
                save(opening, figures_in, None)
            _save_tables(results, summary, target.parent / "tables")
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ResultsError(f"cannot write {target}: {error.strerror or error}; choose another folder") from error
    return target


def _ruled(results: Results, summary: Summary) -> list[str]:
    """Rules that norms were compared for: they have styles too, whether or not a method is called so."""
    return [rule for name in (*summary.experiments, SYNTHETIC) for each in results.norms(name) for rule in each.rmse]


def draw(results: Results, summary: Summary, experiment: str, look: dict[str, Style]) -> list[Drawing]:
    """All figures of an experiment that its rows have the numbers for."""
    metrics = [column for column in summary.columns if not column.key.startswith("cost.")]
    found = [pareto.pareto(summary, experiment, column, look) for column in metrics]
    methods = lineup.main(summary.methods_in(experiment))
    kept = {m: [(row, results.scores(row)) for row in summary.of(experiment, m)] for m in methods}
    risks = {m: [r for pair in pairs if (r := _risks(*pair)) is not None] for m, pairs in kept.items()}
    averaged = {m: curves.risk_coverage(each) for m, each in risks.items() if each}
    if averaged:
        found.append(figures.risk_coverage(averaged, look))
    found.append(_reliability(summary, experiment, {m: [s for _, s in pairs if s] for m, pairs in kept.items()}, look))
    rows = [row for row in summary.rows if row.row == experiment]
    scaled = lineup.scaled(summary.methods_in(experiment))
    chosen = [row for row in rows if row.method in scaled]
    found.append(blocks.block_scales(chosen, scaled) or layers.scales(chosen, look))
    found.append(scatter.norms(results.norms(experiment), "LayerNorm of traced inputs", look))
    found += layers.fidelity(rows, look)
    return [drawing for drawing in found if drawing is not None]


def _risks(row: Row, scores: Scores | None) -> np.ndarray | None:
    """The row's risk-coverage curve: from its scores where they were kept, else as it says itself."""
    if scores is not None:
        return curves.risks_of(scores)
    return None if row.curve is None else np.array(row.curve)


def _reliability(
    summary: Summary, experiment: str, scores: dict[str, list[Scores]], look: dict[str, Style]
) -> Drawing | None:
    # A confidence that is no probability has no reliability diagram.
    calibrated = {m: kept for m, kept in scores.items() if kept and all(_unit(s["confidence"]) for s in kept)}
    if not calibrated:
        return None
    column = next(c for c in COLUMNS if c.key == "ece")
    errors = {m: summary.estimate(experiment, m, column).mean / column.scale for m in calibrated}
    return figures.reliability({m: curves.reliability(kept) for m, kept in calibrated.items()}, errors, look)


def _unit(confidence: np.ndarray) -> bool:
    return bool(((confidence >= 0) & (confidence <= 1)).all())


def _save_tables(results: Results, summary: Summary, folder: Path) -> None:
    """One file per table and kind: the paper's tables for all experiments, and each experiment with all its numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    named: dict[str, tables.Table | tables.Stack] = dict(tables.stacked(summary))
    compared = []
    for experiment in summary.experiments:
        methods = summary.methods_in(experiment)
        named[f"all-{slug(experiment)}"] = tables.results(summary, experiment)
        if len(methods) > 1:
            compared.append(tables.differences(summary, experiment, tables.reference(methods)))
    named |= {"differences": tables.Stack(tuple(compared)), "verdicts": verdicts.verdicts(summary)}
    named["ablation-order"] = verdicts.order(summary)
    for name, table in named.items():
        if isinstance(table, tables.Stack) and not table.tables:
            continue
        for kind, text in (
            ("txt", table.text()),
            ("md", table.markdown()),
            ("csv", table.csv()),
            ("tex", table.latex()),
        ):
            (folder / f"{name}.{kind}").write_text(f"{text.rstrip()}\n", encoding="utf-8")
    errors = [(name, each) for name in (*summary.experiments, SYNTHETIC) for each in results.norms(name)]
    if errors:
        (folder / "norms.csv").write_text(csv_text(*scatter.table(errors)), encoding="utf-8")
