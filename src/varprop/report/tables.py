"""Which tables there are: results, averages and paired differences, beside the paper's numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from varprop.report import lineup, paper
from varprop.report.columns import EXTENDED, MAIN, Column
from varprop.report.formats import Cell, Stack, Table, heading
from varprop.report.paper import Published
from varprop.report.summary import Estimate, Summary, best

__all__ = ["Cell", "Stack", "Table", "differences", "heading", "macro", "reference", "results", "signed", "stacked"]

Beside = Callable[[str, str], Published | None]
"""The paper's number of a method and a column's key."""


def results(
    summary: Summary,
    experiment: str,
    columns: Sequence[Column] | None = None,
    methods: Sequence[str] | None = None,
    *,
    beside: Beside | None = None,
) -> Table:
    """Mean ± standard error over seeds of the methods in an experiment, beside the paper's where it has such a row."""
    chosen = tuple(columns or summary.columns)
    methods = summary.methods_in(experiment) if methods is None else methods
    found = {c.key: {m: summary.estimate(experiment, m, c) for m in methods} for c in chosen}
    title = f"{summary.title(experiment)}: mean ± standard error over {_seeds(len(summary.seeds(experiment)))}"
    row, relation = summary.paper(experiment), summary.relation(experiment)
    if beside is None and row is not None:
        beside, title = functools.partial(paper.published, row), f"{title}; {relation}"
    return _table(experiment, title, chosen, methods, found, beside)


def macro(
    summary: Summary,
    columns: Sequence[Column] | None = None,
    methods: Sequence[str] | None = None,
    *,
    experiments: Sequence[str] | None = None,
    beside: Beside | None = None,
) -> Table:
    """The average over experiments; standard errors combined as if the experiments were independent.

    If all of them belong to rows of the paper, the average of those rows is beside it.
    """
    chosen, over = tuple(columns or summary.columns), tuple(experiments or summary.experiments)
    common = summary.everywhere(over)
    methods = common if methods is None else tuple(m for m in methods if m in common)
    found = {c.key: {m: summary.macro(m, c, over) for m in methods} for c in chosen}
    title = f"average of {', '.join(map(summary.title, over))}"
    rows = [row for row in map(summary.paper, over) if row is not None]
    if beside is None and len(rows) == len(over):
        title = f"{title}; beside the paper's average of the rows they are or stand in for"
        beside = functools.partial(_average, rows)
    return _table("average", title, chosen, methods, found, beside)


def differences(
    summary: Summary,
    experiment: str,
    to: str,
    columns: Sequence[Column] | None = None,
    methods: Sequence[str] | None = None,
) -> Table:
    """``to`` minus each other method, paired by seed. Nothing is best here."""
    chosen = tuple(columns or summary.columns)
    lines = tuple(
        (method, tuple(Cell(summary.difference(experiment, to, method, c), signed(c)) for c in chosen))
        for method in (methods or summary.methods_in(experiment))
        if method != to
    )
    title = f"{summary.title(experiment)}: {to} minus each method, paired by seed"
    return Table(title, chosen, lines, experiment)


def stacked(summary: Summary) -> dict[str, Stack]:
    """The tables of the paper, of all experiments at hand and their average: main, extended, sampling, ablation.

    Where only some experiments belong to rows of the paper, these have an average of their own.
    """
    main, extended = (tuple(c for c in columns if c in summary.columns) for columns in (MAIN, EXTENDED))
    pick = lineup.main
    kinds = {"main": (main, pick), "extended": (extended, pick), "sampling": (main, lineup.sampled)}
    found = {name: _stack(summary, columns, pick) for name, (columns, pick) in kinds.items()}
    ablated = [
        results(summary, e, main, m, beside=_nothing) for e in summary.experiments if (m := _ablated(summary, e))
    ]
    if len(ablated) > 1 and lineup.ablated(summary.everywhere()):
        ablated.append(_ablation_average(summary, main))
    found["ablation"] = Stack(tuple(ablated))
    return {name: stack for name, stack in found.items() if stack.tables and stack.tables[0].columns}


def _stack(summary: Summary, columns: tuple[Column, ...], pick: Callable[[Sequence[str]], tuple[str, ...]]) -> Stack:
    chosen = [(e, pick(summary.methods_in(e))) for e in summary.experiments]
    tables = [results(summary, e, columns, methods) for e, methods in chosen if methods]
    if len(tables) == len(summary.experiments) > 1:
        tables += [macro(summary, columns, pick(summary.everywhere(over)), experiments=over) for over in _sets(summary)]
    return Stack(tuple(table for table in tables if table.lines))


def _sets(summary: Summary) -> list[tuple[str, ...]]:
    """What is averaged over: all experiments, and those that belong to the paper."""
    ours = tuple(e for e in summary.experiments if summary.paper(e))
    return [summary.experiments, *([ours] if 1 < len(ours) < len(summary.experiments) else [])]


def _ablated(summary: Summary, experiment: str) -> tuple[str, ...]:
    return lineup.ablated(summary.methods_in(experiment))


def _ablation_average(summary: Summary, columns: tuple[Column, ...]) -> Table:
    """Beside the paper's, which has the ablation for its six benchmarks together only."""
    table = macro(summary, columns, lineup.ablated(summary.everywhere()), beside=paper.ablation)
    return Table(f"{table.title}; beside the paper's average of its six benchmarks", columns, table.lines, table.name)


def _average(rows: Sequence[str], method: str, key: str) -> Published | None:
    found = [number for row in rows if (number := paper.published(row, method, key))]
    if len(found) < len(rows):
        return None
    size = len(rows)
    sem = math.sqrt(sum(number.sem**2 for number in found)) / size
    return Published(sum(number.mean for number in found) / size, sem, found[0].digits)


def _nothing(method: str, key: str) -> Published | None:
    return None


def reference(methods: Sequence[str]) -> str:
    """The method that others are compared with: CVP, or the last one."""
    return next((m for m in methods if m.lower() == "cvp"), methods[-1])


@dataclass(frozen=True)
class _Signed(Column):
    def show(self, value: float) -> str:
        return "–" if math.isnan(value) else f"{value:+.{self.digits}f}".replace("-", "−")


def signed(column: Column) -> Column:
    """The same column for differences: with a sign."""
    return _Signed(**vars(column))


def _table(
    name: str,
    title: str,
    columns: tuple[Column, ...],
    methods: Sequence[str],
    found: dict[str, dict[str, Estimate]],
    beside: Beside | None,
) -> Table:
    # The cheapest method is no finding: times have no best.
    timed = [c.key for c in columns if c.key.startswith("cost.")]
    top = {
        c.key: frozenset() if c.key in timed else best({m: e.mean for m, e in found[c.key].items()}, c) for c in columns
    }
    lines = tuple(
        (m, tuple(Cell(found[c.key][m], c, m in top[c.key], (beside or _nothing)(m, c.key)) for c in columns))
        for m in methods
    )
    return Table(title, columns, lines, name)


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
