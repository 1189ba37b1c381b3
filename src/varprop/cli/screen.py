"""Tables for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from varprop.errors import InputError
from varprop.evaluation.curves import staircase
from varprop.evaluation.methods import method_of
from varprop.evaluation.results import Results, Row
from varprop.report import tables
from varprop.report.summary import Summary
from varprop.report.tables import BEST

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


def show_points(results: Results, risk: float, console: Console) -> None:
    """The lowest threshold within the risk on held-out data, and what it does on test data."""
    if not 0 < risk < 1:
        raise InputError(
            f"a risk is a fraction between 0 and 1, such as 0.01 for one wrong answer in 100, not {risk:g}"
        )
    summary = Summary(results.rows)
    for experiment in summary.experiments:
        table = _table(
            f"{experiment}: at most {100 * risk:g} % wrong", "seed", "threshold", "answered %", "of them wrong %"
        )
        for method in summary.methods_in((experiment,)):
            for row in summary.of(experiment, method):
                table.add_row(escape(method_of(method).title), str(row.seed), *_point(results, row, risk))
        console.print(table)


def _table(heading: str, *columns: str) -> Table:
    table = Table(title=escape(heading), title_justify="left", title_style="bold")
    table.add_column("method", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _point(results: Results, row: Row, risk: float) -> tuple[str, str, str]:
    scores = results.scores(row)
    steps = staircase(scores) if scores else None
    at = steps.at(risk) if steps else None
    if steps is None or at is None:
        return ("not known" if steps is None else "none is enough", "", "")
    answered, wrong = int(steps.answered[at]), float(steps.errors[at])
    rate = f"{100 * wrong / answered:.2f}" if answered else ""
    return f"{steps.threshold[at]:.4f}", f"{100 * answered / row.examples:.1f}", rate
