"""One result: what one method scored with one seed, and its line of JSON."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from varprop.errors import ResultsError

FORMAT = 1
"""Version of the results folder; a reader refuses every other one."""

METRICS = (
    "accuracy",
    "aurc",
    "c@0.5",
    "c@1",
    "c@2",
    "c@5",
    "phi@10",
    "phi@50",
    "phi@100",
    "ece",
    "ace",
    "brier",
    "nll",
)
"""The metrics a row may have: fractions, not percentages."""

POINTS = 100
"""Of the risk-coverage curve that a row may keep: coverage 1/100, 2/100, … 1."""

_OPENING = f'{{"format": {FORMAT}, '
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


@dataclass(frozen=True)
class Row:
    """What one method scored in one experiment with one seed. ``key`` identifies it."""

    row: str
    """The experiment, e.g. ``digits``."""
    method: str
    """Display name, e.g. ``MC-8``."""
    seed: int
    examples: int
    """Size of the test set."""
    metrics: Mapping[str, float]
    cost: Mapping[str, float] | None = None
    """Relative wall-clock time: ``plain``, in passes of the plain network; ``sample``, of one Monte Carlo sample."""
    scales: Mapping[str, float] | None = None
    """Learned α by module path."""
    fidelity: Sequence[Mapping[str, Any]] | None = None
    """Per module: path, module, variance_ratio, correlation, mean_error, plain_error."""
    curve: Sequence[float] | None = None
    """Risk of the most confident 1, 2, …, 100 % of the test set: a risk-coverage curve without scores per example."""
    scores: str | None = None
    """Where the scores per example are, relative to the folder; the folder sets it."""
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None
    time: str | None = None
    """When it was run, ISO 8601."""

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise ResultsError(f"not a result row: {problem}")

    @property
    def key(self) -> tuple[str, str, int]:
        return self.row, self.method, self.seed


def dump(row: Row) -> str:
    """One line of strict JSON; numbers that are not finite become the strings "inf", "-inf" and "nan"."""
    try:
        return json.dumps({"format": FORMAT, **_plain(asdict(row))}, allow_nan=False, ensure_ascii=False)
    except TypeError as error:
        raise ResultsError(
            f"the row {row.key} holds what JSON cannot ({error}); use numbers, text, lists, dicts"
        ) from None


def parse(text: str, where: str) -> Row:
    """The row of one line. ``where`` names the line in messages."""
    try:
        found = json.loads(text)
    except ValueError:
        raise ResultsError(f"{where} is not JSON; delete that line and run what it held again") from None
    if not isinstance(found, dict) or "format" not in found:
        raise ResultsError(f"{where} is not a result row; is this a results folder?")
    if found["format"] != FORMAT:
        raise ResultsError(
            f"{where} has format {found['format']}, this varprop reads format {FORMAT}; "
            "use the varprop that wrote it, or another folder"
        )
    known = {f.name for f in fields(Row)}
    values = {name: value for name, value in found.items() if name in known}
    for name in ("metrics", "cost", "scales"):
        if isinstance(values.get(name), dict):
            values[name] = _numbers(values[name])
    if isinstance(values.get("fidelity"), list):
        values["fidelity"] = tuple(
            _numbers(entry) if isinstance(entry, dict) else entry for entry in values["fidelity"]
        )
    if isinstance(values.get("curve"), list):
        values["curve"] = tuple(values["curve"])
    missing = [name for name in ("row", "method", "seed", "examples", "metrics") if name not in values]
    if missing:
        raise ResultsError(f"{where} lacks {', '.join(missing)}; delete that line and run what it held again")
    try:
        return Row(**values)
    except ResultsError as error:
        raise ResultsError(f"{where}: {error}") from None


def cut_short(text: str) -> bool:
    """Whether this is only the beginning of a row's line: what a kill leaves. Other text is not ours to drop."""
    try:
        json.loads(text)
    except ValueError:
        return text.startswith(_OPENING) or _OPENING.startswith(text)
    return False


def _numbers(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        k: _NOT_FINITE.get(v, v) if isinstance(v, str) and k not in ("path", "module") else v for k, v in entry.items()
    }


def _plain(value: Any) -> Any:
    """Only what JSON has. NumPy's and torch's scalars have ``item``; their arrays of one element do too."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _problem(row: Row) -> str | None:
    """The first field that cannot be right, in words."""
    checks: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
        ("row", lambda v: isinstance(v, str) and bool(v), "a name"),
        ("method", lambda v: isinstance(v, str) and bool(v), "a name"),
        ("seed", _whole, "a whole number"),
        ("examples", lambda v: _whole(v) and v > 0, "a whole number above 0"),
        ("metrics", lambda v: _measured(v) and bool(v) and set(v) <= set(METRICS), f"numbers for {', '.join(METRICS)}"),
        (
            "cost",
            lambda v: v is None or (_measured(v) and set(v) <= {"plain", "sample"}),
            "numbers for plain and sample",
        ),
        ("scales", lambda v: v is None or _measured(v), "numbers by module path, or None"),
        ("fidelity", lambda v: v is None or _listed(v), "a list of entries with a path, or None"),
        ("curve", lambda v: v is None or _risks(v), f"{POINTS} numbers in [0, 1], or None"),
        ("scores", lambda v: v is None or isinstance(v, str), "a relative path, or None"),
        ("config", lambda v: isinstance(v, Mapping), "a mapping"),
        ("versions", lambda v: isinstance(v, Mapping), "a mapping"),
    )
    for name, holds, wanted in checks:
        value = getattr(row, name)
        if not holds(value):
            shown = repr(value)
            return f"{name} must be {wanted}, not {shown if len(shown) < 80 else shown[:77] + '...'}"
    return None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _measured(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(k, str) and isinstance(v, numbers.Real) and not isinstance(v, bool) for k, v in value.items()
    )


def _risks(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == POINTS
        and all(isinstance(risk, int | float) and 0 <= risk <= 1 for risk in value)
    )


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(entry, Mapping) and "path" in entry for entry in value)
