"""Tables as values, and how they are written: as plain text, Markdown, CSV and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from varprop.report.columns import Column
from varprop.report.paper import Published
from varprop.report.summary import Estimate
from varprop.report.svg import csv_text

_ARROWS = {"↑": r"$\uparrow$", "↓": r"$\downarrow$"}
_PAPER = "paper"


@dataclass(frozen=True)
class Cell:
    """One number of a table, and the paper's."""

    estimate: Estimate
    column: Column
    best: bool = False
    paper: Published | None = None

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

    @property
    def beside(self) -> str:
        """The paper's number; nothing where it has none."""
        return self.paper.text if self.paper else ""


@dataclass(frozen=True)
class Table:
    """Methods by columns, of one experiment. Where the paper has numbers, they are in a second line."""

    title: str
    columns: tuple[Column, ...]
    lines: tuple[tuple[str, tuple[Cell, ...]], ...]
    name: str = ""
    """The experiment."""

    @property
    def header(self) -> list[str]:
        return ["Method", *(f"{heading(c, self.columns)} {c.arrow}" for c in self.columns)]

    def text(self) -> str:
        """Aligned columns; the best of each is marked with a star."""
        cells = []
        for name, line in self.lines:
            cells.append([name, *(c.text + (" *" if c.best else "  ") for c in line)])
            cells += [[f"  {_PAPER}", *(f"{c.beside}  " for c in line)]] if _compared(line) else []
        header = [self.header[0], *(f"{title}  " for title in self.header[1:])]
        align = ("left", *["right"] * len(self.columns))
        written = tabulate(
            cells, header, "plain", disable_numparse=True, colalign=align, headersalign=align, preserve_whitespace=True
        )
        return "\n".join([self.title, written])

    def markdown(self) -> str:
        cells = []
        for name, line in self.lines:
            cells.append([name, *(f"**{c.text}**" if c.best else c.text for c in line)])
            cells += [[f"*{_PAPER}*", *(f"*{c.beside}*" if c.paper else "" for c in line)]] if _compared(line) else []
        return _markdown(self.header, cells)

    @property
    def compared(self) -> bool:
        """Whether it has any number of the paper."""
        return any(_compared(line) for _, line in self.lines)

    def csv_header(self, compared: bool) -> list[str]:
        kinds = ("", "_sem", "_paper", "_paper_sem") if compared else ("", "_sem")
        return ["method", *(f"{column.key}{kind}" for column in self.columns for kind in kinds)]

    def csv_lines(self, compared: bool) -> list[list[Any]]:
        """All digits, in the columns' units; standard errors and the paper's numbers in columns of their own."""
        return [[name, *(value for cell in line for value in _values(cell, compared))] for name, line in self.lines]

    def csv(self) -> str:
        return csv_text(self.csv_header(self.compared), self.csv_lines(self.compared))

    def latex_header(self) -> str:
        return " & ".join(["Method", *(f"{_tex(heading(c, self.columns))} {_ARROWS[c.arrow]}" for c in self.columns)])

    def latex_lines(self) -> list[str]:
        lines = []
        for name, line in self.lines:
            lines.append(" & ".join([_tex(name), *(_tex_cell(c) for c in line)]))
            if _compared(line):
                beside = [rf"{{\scriptsize {_tex(c.beside)}}}" if c.paper else "" for c in line]
                lines.append(" & ".join([rf"\quad {{\scriptsize {_PAPER}}}", *beside]))
        return lines

    def latex(self) -> str:
        """For the booktabs package."""
        return _latex(len(self.columns), self.latex_header(), [rf"{line} \\" for line in self.latex_lines()])


@dataclass(frozen=True)
class Words:
    """A table of words, of one experiment."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    name: str = ""

    def text(self) -> str:
        return "\n".join([self.title, tabulate(self.lines, self.columns, "plain", disable_numparse=True)])

    def markdown(self) -> str:
        return _markdown(self.columns, self.lines)

    @property
    def compared(self) -> bool:
        return False

    def csv_header(self, compared: bool) -> list[str]:
        return [column.lower().replace(" ", "_") for column in self.columns]

    def csv_lines(self, compared: bool) -> list[list[Any]]:
        return [list(line) for line in self.lines]

    def csv(self) -> str:
        return csv_text(self.csv_header(False), self.csv_lines(False))

    def latex_header(self) -> str:
        return " & ".join(map(_tex, self.columns))

    def latex_lines(self) -> list[str]:
        return [" & ".join(map(_tex, line)) for line in self.lines]

    def latex(self) -> str:
        return _latex(len(self.columns) - 1, self.latex_header(), [rf"{line} \\" for line in self.latex_lines()])


@dataclass(frozen=True)
class Stack:
    """Tables with the same columns below each other: an experiment each."""

    tables: tuple[Table, ...] | tuple[Words, ...]

    def text(self) -> str:
        return "\n\n".join(table.text() for table in self.tables)

    def markdown(self) -> str:
        return "\n\n".join(f"**{table.title}**\n\n{table.markdown()}" for table in self.tables)

    def csv(self) -> str:
        compared = any(table.compared for table in self.tables)
        lines = [[table.name, *line] for table in self.tables for line in table.csv_lines(compared)]
        return csv_text(["experiment", *self.tables[0].csv_header(compared)], lines)

    def latex(self) -> str:
        """One tabular, with a heading for each experiment."""
        width = len(self.tables[0].columns) + (isinstance(self.tables[0], Table))
        body: list[str] = []
        for table in self.tables:
            body += [r"\midrule"] if body else []
            body.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{_tex(table.title)}}}}} \\")
            body += [rf"{line} \\" for line in table.latex_lines()]
        return _latex(width - 1, self.tables[0].latex_header(), body)


def heading(column: Column, columns: Sequence[Column]) -> str:
    """The title, with its unit where two columns share it."""
    return column.title if [c.title for c in columns].count(column.title) == 1 else f"{column.title} ({column.unit})"


def _values(cell: Cell, compared: bool) -> list[float]:
    ours = [cell.estimate.mean, cell.estimate.sem]
    if not compared:
        return ours
    return [*ours, *((cell.paper.mean, cell.paper.sem) if cell.paper else (math.nan, math.nan))]


def _compared(line: Sequence[Cell]) -> bool:
    return any(cell.paper for cell in line)


def _markdown(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    ruler = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ruler, *cells])


def _latex(numbers: int, header: str, body: Sequence[str]) -> str:
    opening = rf"\begin{{tabular}}{{l{'r' * numbers}}}"
    return "\n".join([opening, r"\toprule", rf"{header} \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])


def _tex(text: str) -> str:
    signs = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "Φ": r"$\Phi$", "±": r"$\pm$", "−": "$-$", "–": "--"}
    for sign, code in signs.items():
        text = text.replace(sign, code)
    return text


def _tex_cell(cell: Cell) -> str:
    mean = cell.mean.replace("−", "-").replace("–", "--")
    error = rf"\,{{\scriptsize$\pm${cell.sem}}}" if cell.sem else ""
    return rf"\textbf{{{mean}}}{error}" if cell.best else f"{mean}{error}"
