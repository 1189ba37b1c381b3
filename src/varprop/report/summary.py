"""Several seeds of several methods, summed up: means, standard errors, paired differences, macro-averages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from varprop.evaluation.methods import title
from varprop.evaluation.rows import Row
from varprop.report.columns import COLUMNS, Column
from varprop.report.paper import benchmarks


@dataclass(frozen=True)
class Estimate:
    """A mean over ``count`` values and its standard error, which is NaN for a single one."""

    mean: float
    sem: float
    count: int


NOTHING = Estimate(math.nan, math.nan, 0)


def estimate(values: Iterable[float]) -> Estimate:
    """Mean ± s/√n, with s the standard deviation with n − 1. Values that are NaN are missing, not averaged."""
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return NOTHING
    if not np.isfinite(known).all():
        return Estimate(float(known.sum()), math.nan, len(known))
    sem = float(known.std(ddof=1) / math.sqrt(len(known))) if len(known) > 1 else math.nan
    return Estimate(float(known.mean()), sem, len(known))


def average(estimates: Sequence[Estimate]) -> Estimate:
    """Macro-average over experiments: the mean of K means, with standard error √(Σ sem²)/K, as if independent.

    Nothing if any is missing: a mean over fewer experiments would not be comparable.
    """
    if not estimates or any(each.count == 0 for each in estimates):
        return NOTHING
    size = len(estimates)
    sem = math.sqrt(sum(each.sem**2 for each in estimates)) / size
    return Estimate(sum(each.mean for each in estimates) / size, sem, min(each.count for each in estimates))


class Summary:
    """The rows of a results folder by experiment and title of the method, in the order of the rows."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(replace(row, method=title(row.method)) for row in rows)
        self.experiments = tuple(dict.fromkeys(row.row for row in self.rows))
        self.methods = tuple(dict.fromkeys(row.method for row in self.rows))
        self._found: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            self._found.setdefault((row.row, row.method), []).append(row)
        # Columns that nobody measured are left out.
        self.columns = tuple(c for c in COLUMNS if any(not math.isnan(c.of(row)) for row in self.rows))

    def of(self, experiment: str, method: str) -> tuple[Row, ...]:
        """One row per seed."""
        return tuple(self._found.get((experiment, method), ()))

    def methods_in(self, experiment: str) -> tuple[str, ...]:
        return tuple(method for method in self.methods if self.of(experiment, method))

    def seeds(self, experiment: str) -> tuple[int, ...]:
        return tuple(sorted({row.seed for row in self.rows if row.row == experiment}))

    def title(self, experiment: str) -> str:
        """What its rows call it, e.g. ``CIFAR-10 (sub-tiny ViT)``."""
        return str(self._said(experiment, "title") or experiment)

    def paper(self, experiment: str) -> str | None:
        """The row of the paper that it reproduces or stands in for."""
        found = self._said(experiment, "paper")
        return found if isinstance(found, str) and found in benchmarks() else None

    def relation(self, experiment: str) -> str:
        """How it relates to the paper, in words; nothing if it does not."""
        paper = self.paper(experiment)
        if paper is None:
            return ""
        how = "stands in for" if self._said(experiment, "stand_in") else "beside"
        return f"{how} the paper's {paper}"

    def _said(self, experiment: str, key: str) -> Any:
        return next((row.config[key] for row in self.rows if row.row == experiment and row.config.get(key)), None)

    def estimate(self, experiment: str, method: str, column: Column) -> Estimate:
        values = [column.of(row) for row in self.of(experiment, method)]
        # A time that seeds share was measured once: it has no spread.
        return estimate(dict.fromkeys(values) if column.key.startswith("cost.") else values)

    def difference(self, experiment: str, method: str, reference: str, column: Column) -> Estimate:
        """``method`` minus ``reference``, seed by seed: what seeds have in common cancels."""
        theirs = {row.seed: column.of(row) for row in self.of(experiment, reference)}
        pairs = [(column.of(row), theirs[row.seed]) for row in self.of(experiment, method) if row.seed in theirs]
        # Two infinite values differ by NaN, which estimate would leave out as if it had not been measured.
        return estimate(0.0 if ours == other else ours - other for ours, other in pairs)

    def macro(self, method: str, column: Column, experiments: Sequence[str] | None = None) -> Estimate:
        chosen = self.experiments if experiments is None else experiments
        return average([self.estimate(experiment, method, column) for experiment in chosen])

    def macro_difference(self, method: str, reference: str, column: Column) -> Estimate:
        return average([self.difference(e, method, reference, column) for e in self.experiments])

    def everywhere(self, experiments: Sequence[str] | None = None) -> tuple[str, ...]:
        """The methods that all experiments have."""
        chosen = self.experiments if experiments is None else experiments
        return tuple(m for m in self.methods if all(self.of(e, m) for e in chosen))


def best(means: dict[str, float], column: Column) -> frozenset[str]:
    """Whose number is best, as it is shown: methods that look equal in the table are all best. None if none differ."""
    shown = {name: round(mean, column.digits) for name, mean in means.items() if not math.isnan(mean)}
    if len(set(shown.values())) < 2:
        return frozenset()
    top = max(shown.values()) if column.higher else min(shown.values())
    return frozenset(name for name, value in shown.items() if value == top)


def pareto_front(points: Sequence[tuple[float, float]], higher: bool) -> list[int]:
    """Indices of the (cost, value) points that no other one beats in both, by rising cost."""
    sign = -1 if higher else 1
    order = sorted(range(len(points)), key=lambda i: (points[i][0], sign * points[i][1]))
    front: list[int] = []
    for i in order:
        if not front or sign * points[i][1] < sign * points[front[-1]][1]:
            front.append(i)
    return front
