"""The columns of the tables: which numbers, in which order and unit, and which way is better."""

from __future__ import annotations

import math
from dataclasses import dataclass

from varprop.evaluation.rows import Row


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
    def arrow(self) -> str:
        return "↑" if self.higher else "↓"

    @property
    def label(self) -> str:
        """For an axis: name, unit and direction."""
        unit = f" {self.unit}" if self.unit.startswith("×") else f" ({self.unit})" if self.unit else ""
        return f"{self.title}{unit}, {'higher' if self.higher else 'lower'} is better"

    def of(self, row: Row) -> float:
        """In the column's unit; NaN where the row does not have it."""
        kind, _, name = self.key.rpartition(".") if self.key.startswith("cost.") else ("metrics", "", self.key)
        found = (row.cost or {}) if kind == "cost" else row.metrics
        return float(found.get(name, math.nan)) * self.scale

    def show(self, value: float) -> str:
        return "–" if math.isnan(value) else f"{value:.{self.digits}f}".replace("-", "−")


def _coverage(risk: str) -> Column:
    return Column(f"c@{risk}", f"C@{risk}%", 100, 1, True, "%")


def _reliability(cost: int) -> Column:
    return Column(f"phi@{cost}", f"Φ{cost}", 100, 1, True, "×100")


# The paper's order: quality of the answers, of their ranking, of their probabilities; then what they cost.
COLUMNS = (
    Column("accuracy", "Accuracy", 100, 2, True, "%"),
    Column("aurc", "AURC", 100, 2, False, "×100"),
    *map(_coverage, ("0.5", "1", "2", "5")),
    *map(_reliability, (10, 50, 100)),
    Column("ece", "ECE", 100, 2, False, "×100"),
    Column("ace", "ACE", 100, 2, False, "×100"),
    Column("brier", "Brier", 1, 3, False),
    Column("nll", "NLL", 1, 3, False, "nats"),
    Column("cost.sample", "Time", 1, 2, False, "MC samples"),
    Column("cost.plain", "Time", 1, 2, False, "plain passes"),
)

_NAMED = {column.key: column for column in COLUMNS}
MAIN = tuple(_NAMED[key] for key in ("accuracy", "aurc", "c@0.5", "c@1", "nll", "ece", "brier", "cost.sample"))
"""The paper's main table."""
EXTENDED = tuple(
    _NAMED[key] for key in ("c@2", "c@5", "phi@10", "phi@50", "phi@100", "ace", "cost.sample", "cost.plain")
)
"""The paper's table of further metrics."""
JUDGED = tuple(_NAMED[key] for key in ("aurc", "nll", "brier", "accuracy"))
"""What a verdict is given on."""
