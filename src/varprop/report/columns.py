"""The columns of the tables: which numbers, in which order and unit, and which way is better."""

from __future__ import annotations

import math
from dataclasses import dataclass

from varprop.evaluation.results import Row


@dataclass(frozen=True)
class Column:
    """A number of a row, as tables and figures show it."""

    key: str
    title: str
    scale: float
    digits: int
    higher: bool
    unit: str = ""
    ideal: float | None = None
    """Where neither more nor less is better, what it should be."""

    @property
    def heading(self) -> str:
        return self.title if self.ideal is not None else f"{self.title} {'↑' if self.higher else '↓'}"

    @property
    def label(self) -> str:
        """For an axis: name, unit and direction."""
        unit = f" {self.unit}" if self.unit.startswith("×") else f" ({self.unit})" if self.unit else ""
        better = f"{'higher' if self.higher else 'lower'} is better"
        return f"{self.title}{unit}, {better if self.ideal is None else f'{self.ideal:g} is ideal'}"

    @property
    def timed(self) -> bool:
        return self.key.startswith("cost.")

    @property
    def ranked(self) -> bool:
        """Whether methods have an order by it."""
        return not self.timed and self.ideal is None

    def of(self, row: Row) -> float:
        """In the column's unit; NaN where the row does not have it."""
        found = (row.cost or {}) if self.timed else row.metrics
        return float(found.get(self.key.removeprefix("cost."), math.nan)) * self.scale

    def show(self, mean: float, sem: float = math.nan, sign: str = "") -> str:
        """``5.21 ± 0.07``; a dash for what is missing, and no error where there is but one seed."""
        if math.isnan(mean):
            return "–"
        error = "" if math.isnan(sem) else f" ± {sem:.{self.digits}f}"
        return f"{mean:{sign}.{self.digits}f}{error}".replace("-", "−")


# Quality of the answers, of their ranking, of their probabilities; then what they cost.
COLUMNS = (
    Column("accuracy", "Accuracy", 100, 2, True, "%"),
    Column("aurc", "AURC", 100, 2, False, "×100"),
    *(Column(f"c@{risk}", f"C@{risk}%", 100, 1, True, "%") for risk in ("0.5", "1", "2", "5")),
    *(Column(f"phi@{cost}", f"Φ{cost}", 100, 1, True, "×100") for cost in (10, 50, 100)),
    Column("ece", "ECE", 100, 2, False, "×100"),
    Column("ace", "ACE", 100, 2, False, "×100"),
    Column("brier", "Brier", 1, 3, False),
    Column("nll", "NLL", 1, 3, False, "nats"),
    Column("f1", "F1", 100, 1, True, "%"),
    Column("rmse", "RMSE", 1, 3, False),
    Column("crps", "CRPS", 1, 3, False),
    Column("picp@95", "In 95% interval", 100, 1, True, "%", ideal=95),
    Column("mpiw@95", "Width of 95% interval", 1, 3, False),
    Column("cost.plain", "Time", 1, 2, False, "plain passes"),
    Column("cost.sample", "Time (samples)", 1, 2, False, "MC samples"),
)
NAMED = {column.key: column for column in COLUMNS}
_REGRESSION = ("rmse", "crps", "picp@95", "mpiw@95")
MAIN = tuple(
    NAMED[key] for key in ("accuracy", "aurc", "c@0.5", "c@1", *_REGRESSION, "nll", "ece", "brier", "cost.plain")
)
EXTENDED = tuple(
    NAMED[key] for key in ("c@2", "c@5", "phi@10", "phi@50", "phi@100", "ace", "cost.plain", "cost.sample")
)
