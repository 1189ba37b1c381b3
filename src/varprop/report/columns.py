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

    @property
    def heading(self) -> str:
        return f"{self.title} {'↑' if self.higher else '↓'}"

    @property
    def label(self) -> str:
        """For an axis: name, unit and direction."""
        unit = f" {self.unit}" if self.unit.startswith("×") else f" ({self.unit})" if self.unit else ""
        return f"{self.title}{unit}, {'higher' if self.higher else 'lower'} is better"

    @property
    def timed(self) -> bool:
        return self.key.startswith("cost.")

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
    Column("cost.sample", "Time", 1, 2, False, "MC samples"),
    Column("cost.plain", "Time (plain)", 1, 2, False, "plain passes"),
)
NAMED = {column.key: column for column in COLUMNS}
MAIN = tuple(NAMED[key] for key in ("accuracy", "aurc", "c@0.5", "c@1", "nll", "ece", "brier", "cost.sample"))
EXTENDED = tuple(
    NAMED[key] for key in ("c@2", "c@5", "phi@10", "phi@50", "phi@100", "ace", "cost.sample", "cost.plain")
)
