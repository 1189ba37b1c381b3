"""Tables of results: as plain text, Markdown, CSV and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from varprop.report.columns import Column
from varprop.report.summary import Estimate, Summary, best
from varprop.report.svg import csv_text
from varprop.tables import aligned


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    estimate: Estimate
    column: Column
    best: bool = False

    @property
    def mean(self) -> str:
        return self.column.show(self.estimate.mean)

    @property
    def sem(self) -> str:
        """Nothing if there is but one seed."""
        return "" if math.isnan(self.estimate.sem) else f"{self.estimate.sem:.{self.column.digits}f}"

    @property
    def text(self) -> str:
        return f"{self.mean} ± {self.sem}" if self.sem else self.mean


@dataclass(frozen=True)
class Table:
    """Methods by columns. ``text``, ``markdown``, ``csv`` and ``latex`` show it."""

    title: str
    columns: tuple[Column, ...]
    lines: tuple[tuple[str, tuple[Cell, ...]], ...]

    @property
    def _header(self) -> list[str]:
        return ["Method", *(f"{heading(c, self.columns)} {c.arrow}" for c in self.columns)]

    def text(self) -> str:
        """Aligned columns; the best of each is marked with a star."""
        cells = [[name, *(c.text + (" *" if c.best else "  ") for c in line)] for name, line in self.lines]
        header = [self._header[0], *(f"{title}  " for title in self._header[1:])]
        return "\n".join([self.title, *aligned(header, cells, numbers=range(1, len(header)))])

    def markdown(self) -> str:
        cells = [[name, *(f"**{c.text}**" if c.best else c.text for c in line)] for name, line in self.lines]
        header = [self._header, ["---", *("---:" for _ in self.columns)]]
        return "\n".join(f"| {' | '.join(row)} |" for row in [*header, *cells])

    def csv(self) -> str:
        """All digits, in the columns' units; standard errors in columns of their own."""
        names = [name for c in self.columns for name in (c.key, f"{c.key}_sem")]
        cells = [[name, *(v for c in line for v in (c.estimate.mean, c.estimate.sem))] for name, line in self.lines]
        return csv_text(["method", *names], cells)

    def latex(self) -> str:
        """For the booktabs package."""
        arrows = {"↑": r"$\uparrow$", "↓": r"$\downarrow$"}
        header = ["Method", *(f"{_tex(heading(c, self.columns))} {arrows[c.arrow]}" for c in self.columns)]
        lines = [" & ".join([_tex(name), *(_tex_cell(c) for c in line)]) for name, line in self.lines]
        body = [" & ".join(header) + r" \\", r"\midrule", *(line + r" \\" for line in lines)]
        opening = rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}"
        return "\n".join([opening, r"\toprule", *body, r"\bottomrule", r"\end{tabular}"])


def results(summary: Summary, experiment: str, columns: Sequence[Column] | None = None) -> Table:
    """Mean ± standard error over seeds of every method in an experiment."""
    chosen, methods = tuple(columns or summary.columns), summary.methods_in(experiment)
    found = {c.key: {m: summary.estimate(experiment, m, c) for m in methods} for c in chosen}
    seeds = len(summary.seeds(experiment))
    return _table(f"{experiment}: mean ± standard error over {_seeds(seeds)}", chosen, methods, found)


def macro(summary: Summary, columns: Sequence[Column] | None = None) -> Table:
    """The average over experiments; standard errors combined as if the experiments were independent."""
    chosen = tuple(columns or summary.columns)
    everywhere = tuple(m for m in summary.methods if all(summary.of(e, m) for e in summary.experiments))
    found = {c.key: {m: summary.macro(m, c) for m in everywhere} for c in chosen}
    return _table(f"average of {', '.join(summary.experiments)}", chosen, everywhere, found)


def differences(summary: Summary, experiment: str, to: str, columns: Sequence[Column] | None = None) -> Table:
    """``to`` minus each other method, paired by seed. Nothing is best here."""
    chosen = tuple(columns or summary.columns)
    lines = tuple(
        (method, tuple(Cell(summary.difference(experiment, to, method, c), signed(c)) for c in chosen))
        for method in summary.methods_in(experiment)
        if method != to
    )
    return Table(f"{experiment}: {to} minus each method, paired by seed", chosen, lines)


def reference(methods: Sequence[str]) -> str:
    """The method that others are compared with: CVP, or the last one."""
    return next((m for m in methods if m.lower() == "cvp"), methods[-1])


def heading(column: Column, columns: Sequence[Column]) -> str:
    """The title, with its unit where two columns share it."""
    return column.title if [c.title for c in columns].count(column.title) == 1 else f"{column.title} ({column.unit})"


@dataclass(frozen=True)
class _Signed(Column):
    def show(self, value: float) -> str:
        return "–" if math.isnan(value) else f"{value:+.{self.digits}f}".replace("-", "−")


def signed(column: Column) -> Column:
    """The same column for differences: with a sign."""
    return _Signed(**vars(column))


def _table(
    title: str, columns: tuple[Column, ...], methods: Sequence[str], found: dict[str, dict[str, Estimate]]
) -> Table:
    # The cheapest method is no finding: times have no best.
    timed = [c.key for c in columns if c.key.startswith("cost.")]
    top = {
        c.key: frozenset() if c.key in timed else best({m: e.mean for m, e in found[c.key].items()}, c) for c in columns
    }
    lines = tuple((m, tuple(Cell(found[c.key][m], c, m in top[c.key]) for c in columns)) for m in methods)
    return Table(title, columns, lines)


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _tex(text: str) -> str:
    for sign, code in {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "Φ": r"$\Phi$"}.items():
        text = text.replace(sign, code)
    return text


def _tex_cell(cell: Cell) -> str:
    mean = cell.mean.replace("−", "-").replace("–", "--")
    error = rf"\,{{\scriptsize$\pm${cell.sem}}}" if cell.sem else ""
    return rf"\textbf{{{mean}}}{error}" if cell.best else f"{mean}{error}"
