"""How much each method answers if errors are to be rare, with a guarantee: what a report says first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from varprop.evaluation.arrays import Scores
from varprop.evaluation.results import Results
from varprop.evaluation.thresholds import OperatingPoint, answered, certify
from varprop.report import shown_methods
from varprop.report.summary import Summary

RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
WORTH = 0.2
"""The risk shown is the first at which all methods of the headline answer this fraction, else the first for any."""


@dataclass(frozen=True)
class CertifiedCoverage:
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
    def headline(self) -> str:
        methods = shown_methods.headline(list(self.found.index))
        first, *rest = (f"{shown_methods.in_prose(m)} {{}}{self.found.at[m, 'answered']:.1f} %" for m in methods)
        listed = ", ".join([first.format("answers "), *(each.format("") for each in rest)])
        return f"At most {100 * self.risk:g} % errors, certified: {listed}.".replace(" %", "\u00a0%")

    @property
    def verdict(self) -> str:
        """Whether the difference to the best of the others is more than noise."""
        if not self.rival:
            return ""
        ours, theirs = (shown_methods.in_prose(method) for method in (self.reference, self.rival))
        over = f"paired over {self.seeds} seeds" if self.seeds > 1 else "paired over the test examples of one seed"
        amount = f"{self.gap:+.1f} ± {self.gap_sem:.1f} points of coverage, {over}".replace("-", "−")
        clear = abs(self.gap) > 2 * self.gap_sem
        known = "more than two standard errors" if clear else "within noise, no difference is shown"
        return f"{ours[:1].upper()}{ours[1:]} minus {theirs}, the best of the others: {amount}. That is {known}."


def held_out_scores(results: Results, summary: Summary, experiment: str) -> dict[tuple[str, int], Scores]:
    """Of the main methods, by method and seed: the scores that have those of held-out examples too."""
    methods = shown_methods.main(summary.methods_in((experiment,)))
    found = {(m, row.seed): results.scores(row) for m in methods for row in summary.of(experiment, m)}
    return {key: scores for key, scores in found.items() if scores and "held_out_confidence" in scores}


def certified_coverage(results: Results, summary: Summary, experiment: str) -> CertifiedCoverage | None:
    """None where there are no held-out scores, or no risk at which much is answered."""
    kept = held_out_scores(results, summary, experiment)
    seeds = {seed for _, seed in kept}
    # A method that has fewer seeds than others is not compared.
    kept = {key: s for key, s in kept.items() if all((key[0], seed) in kept for seed in seeds)}
    found = None
    for risk in RISKS if kept else ():
        points = {key: certify(scores, risk) for key, scores in kept.items()}
        each = {key: point.answered / len(kept[key]["confidence"]) if point else 0.0 for key, point in points.items()}
        shares = pd.Series(each).unstack(sort=False)
        much = shares.mean(axis=1) >= WORTH
        enough = much[list(shown_methods.headline(list(much.index)))].all()
        if enough or (found is None and much.any()):
            found = _compared(risk, kept, points, shares)
        if enough:
            break
    return found


def _compared(
    risk: float,
    kept: dict[tuple[str, int], Scores],
    points: dict[tuple[str, int], OperatingPoint | None],
    shares: pd.DataFrame,
) -> CertifiedCoverage:
    """With several seeds, errors are those of the mean over seeds; with one, of the mean over its examples."""
    risks = pd.Series({key: point.risk if point else 0.0 for key, point in points.items()}).unstack(sort=False)
    several = shares.shape[1] > 1
    examples = len(next(iter(kept.values()))["confidence"])
    sem = shares.sem(axis=1) if several else (shares * (1 - shares) / examples).iloc[:, 0] ** 0.5
    found = 100 * pd.DataFrame({"answered": shares.mean(axis=1), "answered_sem": sem, "wrong": risks.mean(axis=1)})
    reference = shown_methods.reference(list(shares.index))
    rival = found["answered"].drop(reference).idxmax() if len(found) > 1 else ""
    gaps = np.zeros(1)
    if rival and several:
        gaps = (shares.loc[reference] - shares.loc[rival]).to_numpy()
    elif rival:
        both = [(method, shares.columns[0]) for method in (reference, rival)]
        thresholds = [point.threshold if (point := points[key]) else np.inf for key in both]
        ours, theirs = (answered(kept[key], threshold) for key, threshold in zip(both, thresholds, strict=True))
        gaps = ours.astype(float) - theirs
    gap_sem = gaps.std(ddof=int(several)) / len(gaps) ** 0.5
    return CertifiedCoverage(risk, found, shares.shape[1], reference, rival, 100 * gaps.mean(), 100 * gap_sem)
