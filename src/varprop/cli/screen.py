"""Tables for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from varprop.errors import InputError
from varprop.evaluation.methods import method_of
from varprop.evaluation.results import Results, Row
from varprop.evaluation.thresholds import LEVEL, OperatingPoint, certify, meet
from varprop.report import shown_methods, tables
from varprop.report.certified import certified_coverage
from varprop.report.summary import Summary
from varprop.report.tables import BEST, BETTER, WORSE

SHOWN = ("accuracy", "aurc", "c@1", "ece", "rmse", "crps", "picp@95", "mpiw@95", "nll", "cost.plain")


def show(results: Results, console: Console) -> None:
    """The main columns of every experiment; the report has them all."""
    summary = Summary(results.rows)
    columns = [column for column in summary.columns if column.key in SHOWN]
    for experiment in summary.experiments:
        found = tables.results(summary, (experiment,), "all", columns, summary.methods_in((experiment,)))
        if found is not None:
            table = _table(found.title, *(column.heading for column in columns))
            for cells, marks in zip(found.cells.to_numpy(), found.marks.to_numpy(), strict=True):
                table.add_row(*(Text(c, "bold" if m == BEST else "") for c, m in zip(cells, marks, strict=True)))
            console.print(table)


def show_certified(results: Results, console: Console) -> None:
    """What each method answers at a certified risk, in words."""
    summary = Summary(results.rows)
    for experiment in summary.experiments:
        found = certified_coverage(results, summary, experiment)
        if found is not None:
            console.print(f"[bold]{escape(found.headline)}[/bold]\n{escape(found.verdict)}", highlight=False)
            _show_clear(summary, experiment, found.reference, console)


def _show_clear(summary: Summary, experiment: str, reference: str, console: Console) -> None:
    """In which metrics the method differs from each other one by more than two standard errors over seeds."""
    found = tables.differences(summary, (experiment,), reference) if len(summary.seeds(experiment)) > 1 else None
    for method, marks in zip(found.methods, found.marks.to_numpy(), strict=True) if found else ():
        better, worse = (
            ", ".join(c.title for c, mark in zip(summary.columns, marks[1:], strict=True) if mark == kind) or "nothing"
            for kind in (BETTER, WORSE)
        )
        text = f"by more than two standard errors: better in {better}; worse in {worse}"
        console.print(escape(f"beside {shown_methods.in_prose(method)}, {text}"), highlight=False)


def show_points(results: Results, risk: float, console: Console) -> None:
    """What each method answers of the test data within the risk, certified and as it is on held-out data."""
    if not 0 < risk < 1:
        raise InputError(
            f"a risk is a fraction between 0 and 1, such as 0.01 for one wrong answer in 100, not {risk:g}"
        )
    summary = Summary(results.rows)
    for experiment in summary.experiments:
        heading = f"{experiment}: at most {100 * risk:g} % wrong, certified with {100 * LEVEL:g} % probability"
        columns = ("seed", "threshold", "answered %", "of them wrong %", "uncertified: answered %", "of them wrong %")
        table = _table(heading, *columns)
        for method in summary.methods_in((experiment,)):
            for row in summary.of(experiment, method):
                table.add_row(escape(method_of(method).title), str(row.seed), *_points(results, row, risk))
        console.print(table)


def _table(heading: str, *columns: str) -> Table:
    table = Table(title=escape(heading), title_justify="left", title_style="bold")
    table.add_column("method", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _points(results: Results, row: Row, risk: float) -> tuple[str, ...]:
    scores = results.scores(row)
    if scores is None or "held_out_confidence" not in scores:
        return ("not known",)
    certified, met = certify(scores, risk), meet(scores, risk)
    threshold = f"{certified.threshold:.4f}" if certified else "none is enough"
    return threshold, *_shares(certified, row), *_shares(met, row)


def _shares(point: OperatingPoint | None, row: Row) -> tuple[str, str]:
    if point is None:
        return "0.0", ""
    return f"{100 * point.answered / row.examples:.1f}", f"{100 * point.risk:.2f}" if point.answered else ""
