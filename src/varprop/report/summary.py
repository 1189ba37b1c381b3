"""Several seeds of several methods, summed up: means, standard errors, paired differences, averages."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from varprop.evaluation.methods import method_of
from varprop.evaluation.results import Row
from varprop.report.columns import COLUMNS

Scope = tuple[str, ...]
"""The experiments that numbers are averaged over: often but one."""


@dataclass(frozen=True)
class Estimates:
    """Means and their standard errors, NaN for a single seed: a line per method, a column per key."""

    mean: pd.DataFrame
    sem: pd.DataFrame


def name_of(scope: Scope) -> str:
    """The experiment, or ``average``."""
    return scope[0] if len(scope) == 1 else "average"


def _mean(values: pd.Series) -> float:
    """By NumPy: pandas sums in another order, whose last bit can round a half in a stored table the other way."""
    known = values.to_numpy()[values.notna()]
    return float(known.mean()) if len(known) else math.nan


class Summary:
    """The rows of a results folder as one table of numbers. Methods and experiments keep the order of the rows."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)
        self.experiments = tuple(dict.fromkeys(row.row for row in rows))
        self.methods = tuple(dict.fromkeys(row.method for row in rows))
        index = pd.MultiIndex.from_tuples([row.key for row in rows], names=["row", "method", "seed"])
        values = {column.key: [column.of(row) for row in rows] for column in COLUMNS}
        self.values = pd.DataFrame(values, index=index).dropna(axis=1, how="all")
        self.columns = tuple(column for column in COLUMNS if column.key in self.values)

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Each experiment, and if there are several, all of them."""
        alone = tuple((experiment,) for experiment in self.experiments)
        return (*alone, self.experiments) if len(alone) > 1 else alone

    def of(self, experiment: str, method: str | None = None) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.row == experiment and method in (None, row.method))

    def methods_in(self, scope: Scope) -> tuple[str, ...]:
        """The methods that all experiments of the scope have."""
        found = {(row.row, row.method) for row in self.rows}
        return tuple(method for method in self.methods if all((e, method) in found for e in scope))

    def seeds(self, experiment: str, method: str | None = None) -> tuple[int, ...]:
        return tuple(sorted({row.seed for row in self.of(experiment, method)}))

    def has_all_seeds(self, scope: Scope, method: str) -> bool:
        """Else its mean is one over other networks than those of the other methods."""
        return all(self.seeds(experiment, method) == self.seeds(experiment) for experiment in scope)

    def has_half_of_the_seeds(self, scope: Scope, method: str) -> bool:
        """Else its mean says more about its few networks than about the method."""
        return all(2 * len(self.seeds(experiment, method)) >= len(self.seeds(experiment)) for experiment in scope)

    def named(self, scope: Scope, method: str) -> str:
        """The method's title, with the number of its seeds where it has not all."""
        title = method_of(method).title
        if self.has_all_seeds(scope, method):
            return title
        if len(scope) > 1:
            return f"{title} (not all seeds)"
        return f"{title} ({len(self.seeds(scope[0], method))} of {len(self.seeds(scope[0]))} seeds)"

    def with_common_seeds(self, scope: Scope, methods: Sequence[str]) -> Summary:
        """Of each experiment the seeds that all of these methods have; all that there are where they share none."""
        if all(self.has_all_seeds(scope, method) for method in methods):
            return self
        common = {e: set.intersection(*(set(self.seeds(e, method)) for method in methods)) for e in scope}
        kept = [row for row in self.rows if row.seed in (common.get(row.row) or {row.seed})]
        return Summary(kept)

    def setting(self, experiment: str, key: str) -> Any:
        """An entry of the rows' settings; None if no row has it."""
        return next((row.config[key] for row in self.of(experiment) if row.config.get(key)), None)

    def title(self, experiment: str) -> str:
        """What its rows call it, e.g. ``CIFAR-10 (sub-tiny ViT)``."""
        return str(self.setting(experiment, "title") or experiment)

    def heading(self, scope: Scope) -> str:
        """The title of the experiment, or ``average``."""
        return self.title(scope[0]) if len(scope) == 1 else name_of(scope)

    @functools.cache  # noqa: B019 (it lives as long as a report is made)
    def estimates(self, scope: Scope) -> Estimates:
        """Mean ± s/√n over seeds, with s the standard deviation with n − 1; averaged over the scope."""
        values = self.values.loc[list(scope)]
        grouped = values.groupby(level=["row", "method"], sort=False)
        # A time that seeds share was measured once: it has no spread.
        timed = [column.key for column in self.columns if column.timed]
        sem = grouped.sem()
        sem[timed] = sem[timed].where(grouped[timed].nunique() > 1)
        return self._averaged(scope, grouped.agg(_mean), sem)

    @functools.cache  # noqa: B019
    def differences(self, scope: Scope, reference: str) -> Estimates:
        """``reference`` minus each other method, seed by seed, so that what seeds have in common cancels."""
        values = self.values.loc[list(scope)]
        theirs = values.xs(reference, level="method").reindex(values.index.droplevel("method")).set_axis(values.index)
        # Two infinite values differ by NaN, which would be left out as if it had not been measured.
        gaps = (theirs - values).mask(theirs == values, 0.0).drop(reference, level="method")
        grouped = gaps.groupby(level=["row", "method"], sort=False)
        return self._averaged(scope, grouped.agg(_mean), grouped.sem())

    def _averaged(self, scope: Scope, mean: pd.DataFrame, sem: pd.DataFrame) -> Estimates:
        """The mean of K means, with standard error √(Σ sem²)/K, as if the experiments were independent.

        Nothing if any is missing: a mean over fewer experiments would not be comparable.
        """

        def summed(frame: pd.DataFrame) -> pd.DataFrame:
            found = frame.groupby(level="method", sort=False).sum(min_count=len(scope))
            return found.loc[[method for method in self.methods_in(scope) if method in found.index]]

        return Estimates(summed(mean) / len(scope), summed(sem**2) ** 0.5 / len(scope))
