"""Tables: which there are, and how they are written as text, Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from varprop.evaluation.methods import method_of
from varprop.report import shown_methods
from varprop.report.columns import EXTENDED, MAIN, Column
from varprop.report.summary import Estimates, Scope, Summary, name_of

BEST, BETTER, WORSE, ASIDE = "best", "better", "worse", "aside"
"""Marks of cells: the best of a column, a clear difference, what stands beside the numbers."""

_TEX = str.maketrans(
    {
        **{sign: rf"\{sign}" for sign in "&%_#${}"},
        "\\": r"\textbackslash{}",
        "^": r"\^{}",
        "~": r"\~{}",
        "Φ": r"$\Phi$",
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
    }
)


@dataclass(frozen=True)
class Table:
    """One table of one experiment, or of their average."""

    kind: str
    """What it is about; tables of a kind go to one file."""
    name: str
    """The experiment, or ``average``."""
    title: str
    cells: pd.DataFrame
    """Text as it is shown; the first column says what a line is about."""
    marks: pd.DataFrame
    """Of each cell, or nothing."""
    numbers: pd.DataFrame
    """The same with all digits and standard errors, for a CSV file."""
    methods: tuple[str, ...] = ()
    """Of each line; nothing where it is about none."""
    units: tuple[str, ...] = ()
    """Of each column but the first, where it holds numbers."""

    def marked(self, forms: dict[str, str], signs: dict[int, str] | None = None) -> pd.DataFrame:
        """The cells with their marks shown: ``forms`` has a pattern for a mark, ``signs`` replaces characters."""
        cells = self.cells.map(lambda text: text.translate(signs or {}))
        for mark, form in forms.items():
            cells = cells.mask((self.marks == mark) & (cells != ""), cells.map(form.format))
        return cells.rename(columns=lambda name: name.translate(signs or {}))

    def markdown(self) -> str:
        return _tabulated(self.marked({BEST: "**{}**", ASIDE: "*{}*"}, {ord("|"): r"\|"}), "pipe")

    def text(self) -> str:
        return f"{self.title}\n{_tabulated(self.marked({BEST: '{} *'}), 'simple')}"

    def latex(self) -> str:
        """For the booktabs package."""
        marked = self.marked({BEST: r"\textbf{{{}}}", ASIDE: r"\textit{{{}}}"}, _TEX)
        body: str = marked.to_latex(index=False, escape=False, column_format="l" + "r" * (marked.shape[1] - 1))
        return f"% {self.title}\n{body}"


def _tabulated(cells: pd.DataFrame, form: str) -> str:
    align = ("left", *["right"] * (cells.shape[1] - 1))
    text: str = cells.to_markdown(index=False, tablefmt=form, disable_numparse=True, colalign=align)
    return text


def write(tables: Sequence[Table], folder: Path) -> None:
    """A file of each format for every kind of table."""
    for kind in dict.fromkeys(table.kind for table in tables):
        chosen = [table for table in tables if table.kind == kind]
        markdown = "\n\n".join(f"**{table.title}**\n\n{table.markdown()}" for table in chosen)
        numbers = pd.concat([table.numbers for table in chosen])
        written = {"md": markdown, "txt": "\n\n".join(table.text() for table in chosen)}
        written |= {"tex": "\n".join(table.latex() for table in chosen)}
        written |= {"csv": numbers.to_csv(index=False, float_format="%.8g", lineterminator="\n")}
        for suffix, text in written.items():
            (folder / f"{kind}.{suffix}").write_text(f"{text.rstrip()}\n", encoding="utf-8")


def words(kind: str, name: str, title: str, cells: pd.DataFrame, methods: Sequence[str] = ()) -> Table:
    """A table of words, without marks."""
    numbers = cells.rename(columns=lambda column: str(column).lower().replace(" ", "_"))
    numbers.insert(0, "experiment", name)
    marks = pd.DataFrame("", index=cells.index, columns=cells.columns)
    return Table(kind, name, title, cells, marks, numbers, tuple(methods))


def kinds(summary: Summary, scope: Scope) -> list[Table]:
    """The tables of a scope: main, extended, sampling, ablation, and all that was measured in one experiment.

    A method with few of the seeds is not in the first three. Ablation and sampling are of the seeds that all have.
    """
    found = summary.methods_in(scope)
    there = [method for method in found if summary.has_half_of_the_seeds(scope, method)]
    chosen: dict[str, tuple[Sequence[Column], Sequence[str]]] = {
        "main": (MAIN, shown_methods.main(there)),
        "extended": (EXTENDED, shown_methods.main(there)),
        "sampling": (MAIN, shown_methods.sampled(there)),
        "ablation": (MAIN, shown_methods.ablated(found)),
    }
    if len(scope) == 1:
        chosen["all"] = (summary.columns, found)
    drawn = []
    for kind, (columns, methods) in chosen.items():
        shown = summary.with_common_seeds(scope, methods) if kind in ("sampling", "ablation") else summary
        drawn.append(results(shown, scope, kind, columns, methods))
    return [table for table in drawn if table is not None]


def results(
    summary: Summary, scope: Scope, kind: str, columns: Sequence[Column], methods: Sequence[str]
) -> Table | None:
    """Mean ± standard error over seeds; None if nothing was measured. A method without all seeds is never the best."""
    found = summary.estimates(scope)
    columns = [c for c in columns if c in summary.columns and found.mean[c.key].loc[list(methods)].notna().any()]
    if not columns or not methods:
        return None
    if len(scope) == 1:
        seeds = len(summary.seeds(scope[0]))
        title = f"{summary.title(scope[0])}: mean ± standard error over {seeds} seed{'s' * (seeds > 1)}"
    else:
        title = f"average of {', '.join(map(summary.title, scope))}"
    full = [method for method in methods if summary.has_all_seeds(scope, method)]

    def best(mean: pd.Series, sem: pd.Series, column: Column) -> list[str]:
        return _best(mean.where(mean.index.isin(full)), column)

    return _table(summary, kind, scope, title, found, columns, methods, best)


def differences(summary: Summary, scope: Scope, reference: str) -> Table | None:
    """``reference`` minus each other method, paired by seed, marked where it is more than twice its standard error."""
    others = [method for method in summary.methods_in(scope) if method != reference]
    if not others:
        return None
    found = summary.differences(scope, reference)
    title = f"{summary.title(scope[0])}: {method_of(reference).title} minus each method, paired by seed"
    return _table(summary, "differences", scope, title, found, summary.columns, others, _judged, "+")


def judge(mean: float, sem: float, higher: bool, errors: float) -> str:
    """Better or worse by more than this many standard errors of the paired differences, or nothing."""
    if not abs(mean) > errors * sem:  # NaN for a single seed
        return ""
    return BETTER if (mean > 0) == higher else WORSE


_Marker = Callable[[pd.Series, pd.Series, Column], list[str]]


def _best(mean: pd.Series, column: Column) -> list[str]:
    """Whose number is best, as it is shown: methods that look equal are all best. None if none differ.

    The cheapest method is no finding: times have no best.
    """
    shown = mean.map(column.show)
    if not column.ranked or shown[mean.notna()].nunique() < 2:
        return [""] * len(mean)
    top = shown[mean.idxmax() if column.higher else mean.idxmin()]
    return [BEST if text == top else "" for text in shown]


def _judged(mean: pd.Series, sem: pd.Series, column: Column) -> list[str]:
    return [judge(m, s, column.higher, errors=2) if column.ranked else "" for m, s in zip(mean, sem, strict=True)]


def _table(
    summary: Summary,
    kind: str,
    scope: Scope,
    title: str,
    found: Estimates,
    columns: Sequence[Column],
    methods: Sequence[str],
    mark: _Marker,
    sign: str = "",
) -> Table:
    name = name_of(scope)
    mean, sem = found.mean.loc[list(methods)], found.sem.loc[list(methods)]
    cells = pd.DataFrame({"Method": [summary.named(scope, method) for method in methods]})
    marks = pd.DataFrame({"Method": [""] * len(methods)})
    numbers = pd.DataFrame({"experiment": name, "method": list(methods)})
    for column in columns:
        pairs = zip(mean[column.key], sem[column.key], strict=True)
        cells[column.heading] = [column.show(m, s, sign) for m, s in pairs]
        marks[column.heading] = mark(mean[column.key], sem[column.key], column)
        numbers[[column.key, f"{column.key}_sem"]] = np.stack([mean[column.key], sem[column.key]], axis=1)
    return Table(kind, name, title, cells, marks, numbers, tuple(methods), tuple(c.unit for c in columns))
