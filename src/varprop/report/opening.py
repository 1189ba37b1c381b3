"""The opening of a report: how much each method answers if errors are to be rare, with a guarantee."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from varprop.evaluation.arrays import Scores
from varprop.evaluation.methods import method_of
from varprop.evaluation.results import Results
from varprop.evaluation.thresholds import LEVEL, OperatingPoint, certify
from varprop.report import lineup
from varprop.report.figures import Drawing, Spot
from varprop.report.style import FAINT, INK, Style, figure
from varprop.report.summary import Summary

RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
WORTH = 0.2
"""The first risk at which all methods that are spoken of answer that much is told of, else the first for any method."""


@dataclass(frozen=True)
class Opening:
    """What each method answers (in %) with a certified risk, and how that of ``reference`` differs from the best."""

    risk: float
    found: pd.DataFrame
    """By method: answered, its standard error, wrong (of the answered, on test data)."""
    seeds: int
    reference: str
    rival: str
    gap: float
    gap_sem: float

    @property
    def text(self) -> str:
        told = lineup.told(list(self.found.index))
        first, *rest = (f"{lineup.spoken(m)} {{}}{self.found.at[m, 'answered']:.1f} %" for m in told)
        said = ", ".join([first.format("answers "), *(each.format("") for each in rest)])
        return f"At most {100 * self.risk:g} % errors, certified: {said}.".replace(" %", "\u00a0%")

    @property
    def verdict(self) -> str:
        """Whether the difference to the best of the others is more than noise."""
        if not self.rival:
            return ""
        names = f"{lineup.spoken(self.reference)} minus {lineup.spoken(self.rival)}, the best of the others"
        over = f"paired over {self.seeds} seeds" if self.seeds > 1 else "paired over the test examples of one seed"
        amount = f"{self.gap:+.1f} ± {self.gap_sem:.1f} points of coverage, {over}".replace("-", "−")
        clear = abs(self.gap) > 2 * self.gap_sem
        known = "more than two standard errors" if clear else "within noise, no difference is shown"
        return f"{names[:1].upper()}{names[1:]}: {amount}. That is {known}."


def opening(results: Results, summary: Summary, experiment: str) -> Opening | None:
    """None where there are no held-out scores, or no risk at which much is answered."""
    methods = lineup.main(summary.methods_in((experiment,)))
    kept = {(m, row.seed): s for m in methods for row in summary.of(experiment, m) if (s := lineup.held(results, row))}
    seeds = {seed for _, seed in kept}
    # A method that has fewer seeds than others is not compared.
    kept = {key: s for key, s in kept.items() if all((key[0], seed) in kept for seed in seeds)}
    first = None
    for risk in RISKS if kept else ():
        points = {key: certify(scores, risk) for key, scores in kept.items()}
        shares = pd.Series({key: _share(points[key], scores) for key, scores in kept.items()}).unstack(sort=False)
        worth = shares.mean(axis=1) >= WORTH
        if worth[list(lineup.told(list(worth.index)))].all():
            return _opened(risk, kept, points, shares)
        if worth.any() and first is None:
            first = _opened(risk, kept, points, shares)
    return first


def _share(point: OperatingPoint | None, scores: Scores) -> float:
    return point.answered / len(scores["confidence"]) if point else 0.0


def _opened(
    risk: float,
    kept: dict[tuple[str, int], Scores],
    points: dict[tuple[str, int], OperatingPoint | None],
    shares: pd.DataFrame,
) -> Opening:
    methods, seeds = list(shares.index), list(shares.columns)
    several = len(seeds) > 1
    size = len(next(iter(kept.values()))["confidence"])
    wrong = {m: np.mean([p.risk if (p := points[m, s]) else 0.0 for s in seeds]) for m in methods}
    sem = shares.sem(axis=1) if several else (shares * (1 - shares) / size)[seeds[0]] ** 0.5
    found = pd.DataFrame({"answered": shares.mean(axis=1), "answered_sem": sem, "wrong": pd.Series(wrong)}) * 100
    reference = lineup.reference(methods)
    others = [m for m in methods if m != reference]
    rival = max(others, key=lambda m: found.at[m, "answered"]) if others else ""
    gap, gap_sem = 0.0, 0.0
    if rival and several:
        gaps = shares.loc[reference] - shares.loc[rival]
        gap, gap_sem = float(gaps.mean()), float(gaps.sem())
    elif rival:
        ours, theirs = (_answered(kept[m, seeds[0]], points[m, seeds[0]]) for m in (reference, rival))
        gap, gap_sem = float((ours - theirs).mean()), float((ours - theirs).std() / math.sqrt(size))
    return Opening(risk, found, len(seeds), reference, rival, 100 * gap, 100 * gap_sem)


def _answered(scores: Scores, point: OperatingPoint | None) -> np.ndarray:
    return (scores["confidence"].astype(np.float64) >= (point.threshold if point else np.inf)).astype(float)


def draw(experiment: str, opened: Opening, styles: dict[str, Style]) -> Drawing:
    """A bar per method, the best on top: answered with a certified risk, with its standard error."""
    found = opened.found.sort_values("answered", ascending=False, kind="stable")
    fig = figure(4.2, 0.7 + 0.28 * len(found))
    axes = fig.subplots()
    places = range(len(found))
    colours = [styles[m].colour for m in found.index]
    axes.barh(places, found["answered"], 0.62, color=colours, zorder=2)
    axes.errorbar(found["answered"], places, xerr=found["answered_sem"], fmt="none", ecolor=INK, elinewidth=1, zorder=3)
    spots = []
    for y, (method, (answered, sem, wrong)) in zip(places, found.iterrows(), strict=True):
        axes.annotate(f"{answered:.1f} %", (answered + sem, y), (5, 0), textcoords="offset points", va="center")
        told = f"{method_of(method).title}: answers {answered:.1f} ± {sem:.1f} %, of these {wrong:.2f} % are wrong"
        spots += [Spot(axes, answered * part, y, told) for part in (0.25, 0.5, 0.75, 1)]
    axes.set_yticks(places, [method_of(m).title for m in found.index])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlim(0, min(112, 1.18 * (found["answered"] + found["answered_sem"]).max()))
    axes.set_xlabel(f"Answered (%) at a certified risk of {100 * opened.risk:g} %, higher is better", loc="right")
    axes.grid(visible=False, axis="y")
    axes.grid(color=FAINT, axis="x")
    data = found.assign(risk=opened.risk, level=LEVEL).rename_axis("method").reset_index()
    return Drawing(experiment, "certified", "Answered at a certified risk", opened.text, fig, data, tuple(spots))
