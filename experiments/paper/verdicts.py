"""What the numbers say, in words: where CVP is better or worse, and whether the ablation has the paper's order."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from experiments.paper.published import ablation, averaged, benchmark_of, benchmarks
from varprop.evaluation.methods import method_of
from varprop.report import shown_methods
from varprop.report.columns import NAMED, Column
from varprop.report.summary import Scope, Summary, name_of
from varprop.report.tables import BETTER, WORSE, Table, judge, words

SAME = "no difference"
JUDGED = tuple(NAMED[key] for key in ("aurc", "nll", "brier", "accuracy"))
AURC = JUDGED[0]
FEWEST = 3
"""Methods that have an order."""


def verdict(summary: Summary, scope: Scope) -> Table | None:
    """CVP against each method: better or worse by more than one standard error of the paired differences."""
    methods = summary.methods_in(scope)
    columns = [column for column in JUDGED if column in summary.columns]
    if len(methods) < 2 or not columns:
        return None
    reference = shown_methods.reference(methods)
    found = summary.differences(scope, reference)
    if found.sem[[column.key for column in columns]].isna().all(axis=None):
        return None  # one seed: there is nothing to tell a difference from noise by
    others = list(found.mean.index)
    cells = pd.DataFrame({"Against": [summary.named(scope, method) for method in others]})
    for column in columns:
        pairs = zip(found.mean[column.key], found.sem[column.key], strict=True)
        cells[column.heading] = [_worded(mean, sem, column) for mean, sem in pairs]
    said = [text.partition(" (")[0] for text in cells.iloc[:, 1:].to_numpy().flat]
    count = Counter(said)
    tally = ", ".join(f"{count[word]} {word}" for word in (BETTER, SAME, WORSE) if count[word])
    title = (
        f"{summary.heading(scope)}: {method_of(reference).title} against each method: {tally or 'nothing in common'}"
    )
    return _marked(words("verdicts", name_of(scope), title, cells, others))


def _worded(mean: float, sem: float, column: Column) -> str:
    if math.isnan(mean) or math.isnan(sem):
        return "–"
    word = judge(mean, sem, column.higher, errors=1) or SAME
    return f"{word} ({column.show(mean, sem, '+')})"


def order(summary: Summary, scope: Scope) -> Table | None:
    """The methods of the ablation by AURC: our order beside the paper's, where the rows are the paper's."""
    methods = shown_methods.ablated(summary.methods_in(scope))
    if not all(benchmark_of(summary, experiment) for experiment in scope):
        return None
    theirs = {m: found.mean for m in methods if (found := ablation(m, AURC.key))}
    if not theirs or AURC not in summary.columns:
        return None
    ours = summary.estimates(scope)
    mean, sem = ours.mean[AURC.key].loc[list(theirs)], ours.sem[AURC.key].loc[list(theirs)]
    place = mean.rank(method="first").astype(int)
    gaps = {method: summary.differences(scope, method) for method in theirs}
    lines = []
    ranked = sorted(theirs, key=theirs.__getitem__)
    for method in ranked:
        gap = gaps[method]
        known = method != "cvp" and "cvp" in theirs
        told = _worded(gap.mean.at["cvp", AURC.key], gap.sem.at["cvp", AURC.key], AURC) if known else ""
        here = AURC.show(mean[method], sem[method])
        lines.append((method_of(method).title, f"{theirs[method]:.2f}", here, str(place[method]), told))
    header = ["Method, in the paper's order", "Paper's AURC", "AURC here", "Place here", "Against CVP here"]
    same, against, total = 0, 0, 0
    for a, b in combinations(ranked, 2):
        if theirs[a] < theirs[b]:
            gap = gaps[a].mean.at[b, AURC.key]
            total += 1
            same += gap < 0
            against += judge(gap, gaps[a].sem.at[b, AURC.key], AURC.higher, errors=1) == WORSE
    told = f"{same} of {total} pairs in the paper's order, {against} in the other by more than one standard error"
    title = f"{summary.heading(scope)}: {told}"
    return _marked(words("ablation-order", name_of(scope), title, pd.DataFrame(lines, columns=header), ranked))


def agreement(summary: Summary, scope: Scope) -> Table | None:
    """Kendall's τ_b of our order of the methods and the paper's, by metric; of stand-ins too, which it says.

    1 is the same order, 0 none in common, −1 the opposite one. Ties count for neither.
    """
    rows = [str(summary.setting(experiment, "paper")) for experiment in scope]
    if not set(rows) <= set(benchmarks()):
        return None
    ours, lines = summary.estimates(scope).mean, []
    for column in (each for each in summary.columns if each.ranked):
        theirs = {m: found.mean for m in summary.methods_in(scope) if (found := averaged(rows, m, column.key))}
        here = ours[column.key].reindex(list(theirs)).dropna()
        if len(here) >= FEWEST:
            there = [theirs[method] for method in here.index]
            signs = [
                np.sign(here[a] - here[b]) * np.sign(theirs[a] - theirs[b]) for a, b in combinations(here.index, 2)
            ]
            tau = kendalltau(here.to_numpy(), there).statistic
            counts = (str(sum(s > 0 for s in signs)), str(sum(s < 0 for s in signs)), str(len(here)))
            lines.append((column.heading, "–" if math.isnan(tau) else f"{tau:.2f}", *counts))
    if not lines:
        return None
    header = ["Metric", "Kendall's τ", "Pairs in the paper's order", "In the opposite one", "Methods"]
    stood = [row for row, experiment in zip(rows, scope, strict=True) if summary.setting(experiment, "stand_in")]
    aside = f"; a stand-in for {', '.join(stood)}" if stood else ""
    title = f"{summary.heading(scope)}: the paper's order of the methods and ours{aside}"
    return words("agreement", name_of(scope), title, pd.DataFrame(lines, columns=header))


def _marked(table: Table) -> Table:
    """Verdicts in colour."""
    found = table.cells.map(lambda text: text.partition(" (")[0])
    return replace(table, marks=found.where(found.isin([BETTER, WORSE]), ""))
