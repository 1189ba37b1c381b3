"""The numbers of the paper's tables, to stand beside ours: in the units of the columns, as precise as it gives them."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

AVERAGE = "average"
"""The macro-average over the paper's six benchmarks."""

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


@functools.cache
def _tables() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files("varprop.report").joinpath("paper.json").read_text("utf-8"))
    return found


def benchmarks() -> tuple[str, ...]:
    """The titles of the paper's rows."""
    return tuple(_tables()["benchmarks"])


def ablations() -> tuple[str, ...]:
    """The methods of the ablation table, in its order."""
    return tuple(_tables()["ablations"])


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
