"""The numbers of the paper's tables, to stand beside ours: in the units of the columns, as precise as it gives them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from varprop.report.summary import Scope, Summary
from varprop.report.tables import ASIDE, Table

AVERAGE = "average"
"""The average over the paper's six benchmarks."""

_DIGITS = {"aurc": 2, "ece": 2, "ace": 2, "brier": 2, "nll": 2}  # the paper has one digit for all others


@dataclass(frozen=True)
class Published:
    """A number of the paper with its standard error, NaN where it has none."""

    mean: float
    sem: float
    digits: int

    @property
    def text(self) -> str:
        error = "" if math.isnan(self.sem) else f" ± {self.sem:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{error}"


Lookup = Callable[[str, str], Published | None]
"""The paper's number of a method's slug and a column's key."""


@functools.cache
def _tables() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text("utf-8"))
    return found


def benchmarks() -> tuple[str, ...]:
    """The titles of the paper's rows."""
    return tuple(_tables()["benchmarks"])


def published(benchmark: str, method: str, key: str) -> Published | None:
    """A number of the main and extended tables, of one benchmark or of ``AVERAGE``; None if it is not in them."""
    tables = _tables()
    where = tables["average"] if benchmark == AVERAGE else tables["benchmarks"].get(benchmark, {})
    return _read(where, method, key)


def ablation(method: str, key: str) -> Published | None:
    """A number of the ablation tables, which are averages over the six benchmarks."""
    return _read(_tables()["ablations"], method, key)


def _read(where: dict[str, Any], method: str, key: str) -> Published | None:
    found = where.get(method, {}).get(key)
    if found is None:
        return None
    mean, sem = found
    return Published(mean, math.nan if sem is None else sem, _DIGITS.get(key, 1))


def averaged(rows: Sequence[str], method: str, key: str) -> Published | None:
    """The average over some of the paper's benchmarks; None if one of them lacks it."""
    found = [number for row in rows if (number := published(row, method, key))]
    if len(found) < len(rows):
        return None
    sem = math.sqrt(sum(number.sem**2 for number in found)) / len(rows)
    return Published(sum(number.mean for number in found) / len(rows), sem, found[0].digits)


def benchmark_of(summary: Summary, experiment: str) -> str | None:
    """The row of the paper that an experiment reproduces; None for one that only stands in for it."""
    found = summary.setting(experiment, "paper")
    return found if found in benchmarks() and not summary.setting(experiment, "stand_in") else None


def compared(summary: Summary, scope: Scope, table: Table) -> Table:
    """The table with the paper's numbers beside ours, where all of the scope's rows are the paper's.

    The ablation it has for its six benchmarks together only.
    """
    rows = [row for experiment in scope if (row := benchmark_of(summary, experiment))]
    if len(rows) < len(scope):
        meant = summary.setting(scope[0], "paper") if len(scope) == 1 else None
        return replace(table, title=f"{table.title}; a stand-in for the paper's {meant}") if meant else table
    if table.kind == "ablation":
        every = set(rows) == set(benchmarks())
        return beside(table, ablation, "beside the paper's average of its six benchmarks") if every else table
    if len(scope) == 1:
        return beside(table, functools.partial(published, rows[0]), f"beside the paper's {rows[0]}")
    return beside(table, functools.partial(averaged, rows), "beside the paper's average of the same rows")


def beside(table: Table, lookup: Lookup, relation: str) -> Table:
    """The table with a line below each method that the paper has, and columns for a CSV file."""
    keys = list(table.numbers.columns[2::2])
    cells, marks, methods = [], [], []
    numbers = table.numbers.copy()
    for i, method in enumerate(table.methods):
        found = [lookup(method, key) for key in keys]
        cells.append(list(table.cells.iloc[i]))
        marks.append(list(table.marks.iloc[i]))
        methods.append(method)
        if any(found):
            cells.append(["paper", *(number.text if number else "" for number in found)])
            marks.append([ASIDE] * len(cells[0]))
            methods.append("")
    for key in keys:
        theirs = [lookup(method, key) for method in table.methods]
        values = [(number.mean, number.sem) if number else (math.nan, math.nan) for number in theirs]
        numbers[[f"{key}_paper", f"{key}_paper_sem"]] = np.array(values)
    return replace(
        table,
        title=f"{table.title}; {relation}",
        cells=pd.DataFrame(cells, columns=table.cells.columns),
        marks=pd.DataFrame(marks, columns=table.cells.columns),
        numbers=numbers,
        methods=tuple(methods),
    )
