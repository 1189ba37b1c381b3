"""What the numbers say, in words: where CVP is better or worse, and whether the ablation has the paper's order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import combinations

from varprop.report import lineup, paper
from varprop.report.columns import JUDGED, Column
from varprop.report.formats import Stack, Words
from varprop.report.summary import Estimate, Summary
from varprop.report.tables import reference, signed

BETTER, WORSE, SAME, UNKNOWN = "better", "worse", "no difference", "one seed: not known"

_Difference = Callable[[str, str, Column], Estimate]
AURC = JUDGED[0]


def judge(difference: Estimate, column: Column, errors: float = 1.0) -> str:
    """Better or worse by more than ``errors`` standard errors of the paired differences, or neither."""
    if difference.count == 0 or math.isnan(difference.mean):
        return "–"
    if math.isnan(difference.sem):
        return UNKNOWN
    if abs(difference.mean) <= errors * difference.sem:
        return SAME
    return BETTER if (difference.mean > 0) == column.higher else WORSE


def verdicts(summary: Summary) -> Stack:
    """Of every experiment and their average: CVP against each method."""
    tables = [_verdict(summary, e) for e in summary.experiments if len(summary.methods_in(e)) > 1]
    if len(tables) > 1 and len(summary.everywhere()) > 1:
        tables.append(_verdict(summary, None))
    return Stack(tuple(table for table in tables if len(table.columns) > 1))


def _verdict(summary: Summary, experiment: str | None) -> Words:
    methods, title, name, _, difference = _scope(summary, experiment)
    columns = [c for c in JUDGED if c in summary.columns]
    to = reference(methods)
    lines, count = [], Counter[str]()
    for method in methods:
        if method != to:
            found = [(difference(to, method, c), c) for c in columns]
            count.update(judge(d, c) for d, c in found)
            lines.append((method, *(_worded(d, c) for d, c in found)))
    tally = ", ".join(f"{count[word]} {word}" for word in (BETTER, SAME, WORSE, UNKNOWN) if count[word])
    heads = tuple(f"{c.title} {c.arrow}" for c in columns)
    return Words(
        f"{title}: {to} against each method: {tally or 'nothing in common'}", ("Against", *heads), tuple(lines), name
    )


def _worded(difference: Estimate, column: Column) -> str:
    word = judge(difference, column)
    if word == "–":
        return word
    error = "" if math.isnan(difference.sem) else f" ± {difference.sem:.{column.digits}f}"
    return f"{word} ({signed(column).show(difference.mean)}{error})"


def order(summary: Summary) -> Stack:
    """The methods of the ablation by AURC: our order beside the paper's, of every experiment and their average."""
    scopes: list[str | None] = [e for e in summary.experiments if lineup.ablated(summary.methods_in(e))]
    if len(scopes) > 1 and lineup.ablated(summary.everywhere()):
        scopes.append(None)
    return Stack(tuple(_order(summary, scope) for scope in scopes) if AURC in summary.columns else ())


def _order(summary: Summary, experiment: str | None) -> Words:
    methods, title, name, estimate, difference = _scope(summary, experiment)
    theirs = {m: found.mean for m in lineup.ablated(methods) if (found := paper.ablation(m, "aurc"))}
    ours = {m: estimate(m, AURC) for m in theirs}
    places = sorted(ours, key=lambda m: ours[m].mean)
    lines = []
    for method in sorted(theirs, key=theirs.__getitem__):
        sem = "" if math.isnan(ours[method].sem) else f" ± {ours[method].sem:.2f}"
        gap = "" if method == "CVP" or "CVP" not in ours else _worded(difference(method, "CVP", AURC), AURC)
        here = f"{AURC.show(ours[method].mean)}{sem}"
        lines.append((method, f"{theirs[method]:.2f}", here, str(places.index(method) + 1), gap))
    header = ("Method, in the paper's order", "Paper's AURC", "AURC here", "Place here", "Against CVP here")
    return Words(f"{title}: {_pairs(theirs, difference)}", header, tuple(lines), name)


def _pairs(theirs: dict[str, float], difference: _Difference) -> str:
    """How many pairs of methods that the paper tells apart come in its order."""
    same, against, total = 0, 0, 0
    for a, b in combinations(sorted(theirs, key=theirs.__getitem__), 2):
        if theirs[a] < theirs[b]:
            found = difference(a, b, AURC)
            total += 1
            same += found.mean < 0
            against += judge(found, AURC) == WORSE
    return f"{same} of {total} pairs in the paper's order, {against} in the other by more than one standard error"


def _scope(
    summary: Summary, experiment: str | None
) -> tuple[tuple[str, ...], str, str, Callable[[str, Column], Estimate], _Difference]:
    """Methods, title, name, and how numbers are found: in one experiment, or on average over all."""
    if experiment is None:
        return summary.everywhere(), "average", "average", summary.macro, summary.macro_difference
    estimate, difference = partial(summary.estimate, experiment), partial(summary.difference, experiment)
    return summary.methods_in(experiment), summary.title(experiment), experiment, estimate, difference
