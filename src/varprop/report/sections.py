"""The sections of a report: each a function of the results, which may have nothing to show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pandas as pd

from varprop.evaluation.arrays import Scores
from varprop.evaluation.methods import method_of
from varprop.evaluation.results import Results
from varprop.evaluation.thresholds import LEVEL
from varprop.report import figures, layers, shown_methods, tables
from varprop.report.certified import certified_coverage
from varprop.report.figures import Drawing
from varprop.report.page import Group, Section
from varprop.report.risk_slider import operating_points
from varprop.report.style import styles
from varprop.report.summary import Scope, Summary

Maker = Callable[[Results, Summary], Section | None]
"""What makes a section; None where there is nothing to show."""

CAPTIONS = {
    "extended": "More metrics",
    "sampling": "All sample sizes",
    "ablation": "Ablation",
    "all": "All metrics of all methods",
}
METRICS = {
    "accuracy": "Accuracy says how often answers are right; AURC, C@R and Φ how well confidence tells right from wrong "
    "answers; ECE, ACE, Brier and NLL whether the probabilities mean what they say. ",
    "rmse": "RMSE says how far predictions are off; CRPS and NLL how well the whole distribution foretells what was "
    "observed; 95 % of the observations should lie in their interval, which should be narrow. ",
}
TABLES = "Time is in passes of the plain network. A click on a heading sorts."
_FIRST = ("aurc", "accuracy", "c@1", "rmse", "crps", "nll", "ece", "brier")  # the rest can be opened


def certified(results: Results, summary: Summary) -> Section | None:
    """One sentence and one figure for each experiment: what is answered with a certified risk."""
    look, parts = styles(summary.methods), []
    for experiment in summary.experiments:
        found = certified_coverage(results, summary, experiment)
        if found is not None:
            title = summary.title(experiment) if len(summary.experiments) > 1 else ""
            note = f"{found.verdict} {_certificate(summary, experiment, found.risk)}".strip()
            drawn = figures.certified_coverage(experiment, found, look)
            parts.append(Group(title, [found.headline, note], drawings=[drawn]))
    return Section("certified", "In short", parts=parts) if parts else None


def _certificate(summary: Summary, experiment: str, risk: float) -> str:
    promise = (
        f"Certified: each method's threshold is found on held-out examples so that its true risk is at most "
        f"{100 * risk:g} % with a probability of {100 * LEVEL:g} %, and then used on the test set."
    )
    if summary.setting(experiment, "certified_on"):
        return f"{promise} The examples are {summary.setting(experiment, 'certified_on')}."
    return f"{promise} Methods were fitted on the same held-out examples, which the promise does not allow for."


def outcomes(results: Results, summary: Summary) -> Section:
    """The main table of each experiment and of their average; what else there is can be opened below it."""
    parts = [part for scope in summary.scopes for part in outcome(summary, scope, tables.kinds(summary, scope))]
    note = "".join(text for key, text in METRICS.items() if key in summary.values)
    return Section("results", "Results", note + TABLES, parts)


def outcome(summary: Summary, scope: Scope, found: Sequence[tables.Table]) -> list[Group]:
    """The main table, under a title if there are several, and the others folded."""
    title = summary.heading(scope) if len(summary.experiments) > 1 else ""
    main = Group(title[:1].upper() + title[1:], tables=[table for table in found if table.kind not in CAPTIONS])
    folded = [Group(CAPTIONS[table.kind], tables=[table], folded=True) for table in found if table.kind in CAPTIONS]
    return [main, *folded, *(_differences(summary, scope[0]) if len(scope) == 1 else [])]


def _differences(summary: Summary, experiment: str) -> list[Group]:
    if len(summary.seeds(experiment)) < 2:
        return []  # there is nothing to tell a difference from noise by
    reference = shown_methods.reference(summary.methods_in((experiment,)))
    found = tables.differences(summary, (experiment,), reference)
    title = f"Paired differences to {method_of(reference).title}, coloured where above two standard errors"
    return [Group(title, tables=[found], folded=True)] if found else []


def operating_point(results: Results, summary: Summary) -> Section | None:
    found = operating_points(results, summary)
    return Section("operating-point", "Operating point", slider=found) if found else None


def against_time(results: Results, summary: Summary) -> Section | None:
    note = (
        "One point per method, with its standard error over seeds. Green is where a method improves on the mean "
        "network and on Monte Carlo sampling: none of these is both as fast and as good."
    )
    look, parts = styles(summary.methods), []
    for experiment in summary.experiments:
        columns = [column for column in summary.columns if column.ranked]
        first = sorted((c for c in columns if c.key in _FIRST), key=lambda c: _FIRST.index(c.key))
        for title, chosen in (("", first), ("more metrics", [c for c in columns if c not in first])):
            drawn = [figures.pareto(summary, experiment, column, look) for column in chosen]
            parts += figure_parts(summary, experiment, drawn, title)
    return Section("pareto", "Reliability and time", note, parts) if parts else None


def selective(results: Results, summary: Summary) -> Section | None:
    note = (
        "Curves: the risk of answering only the most confident part of the test set, averaged over seeds; beside it "
        "the same less that of the plain network, seed by seed. The band is the standard error of CVP. Diagrams: "
        "accuracy in 15 bins of confidence, on the diagonal if calibrated; grey bars show how many examples lie in "
        "each bin."
    )
    look, parts = styles(summary.methods), []
    for experiment in summary.experiments:
        methods = shown_methods.main(summary.methods_in((experiment,)))
        rows = [row for method in methods for row in summary.of(experiment, method)]
        curves = {(row.method, row.seed): row.curve for row in rows if row.curve is not None}
        curved = figures.risk_coverage(experiment, curves, look)
        scores = {m: [s for row in summary.of(experiment, m) if (s := results.scores(row))] for m in methods}
        # A confidence that is no probability has no reliability diagram.
        scores = {m: kept for m, kept in scores.items() if kept and all(map(_probabilities, kept))}
        errors = summary.estimates((experiment,)).mean.get("ece", {})
        parts += figure_parts(summary, experiment, [*curved, figures.reliability(experiment, scores, errors, look)])
    return Section("selective", "Risk, coverage and calibration", note, parts) if parts else None


def _probabilities(scores: Scores) -> bool:
    return bool(((scores["confidence"] >= 0) & (scores["confidence"] <= 1)).all())


def inside(results: Results, summary: Summary) -> Section | None:
    note = (
        "What calibration learned, by module: dots are seeds. And how near propagated moments are to those of sampled "
        "networks, from the input to the output: the error of the approximation, which scales are not."
    )
    look, parts = styles(summary.methods), []
    for experiment in summary.experiments:
        rows, chosen = summary.of(experiment), shown_methods.scaled(summary.methods_in((experiment,)))
        scales = {(row.method, row.seed): row.scales for row in rows if row.scales and row.method in chosen}
        modules = {(row.method, row.seed): row.fidelity for row in rows if row.fidelity}
        drawn = [layers.scales(experiment, scales, look), *layers.fidelity(experiment, modules, look)]
        parts += figure_parts(summary, experiment, drawn)
    return Section("layers", "Inside the network", note, parts) if parts else None


def figure_parts(summary: Summary, experiment: str, drawings: Iterable[Drawing | None], more: str = "") -> list[Group]:
    """Figures of an experiment: open for the first one, folded for the others and for what is ``more``."""
    found = [drawing for drawing in drawings if drawing is not None]
    if not found:
        return []
    if len(summary.experiments) == 1 and not more:
        return [Group(drawings=found)]
    title = f"{summary.title(experiment)}: {more}" if more else summary.title(experiment)
    return [Group(title, drawings=found, folded=bool(more) or experiment != summary.experiments[0])]


def runs(results: Results, summary: Summary) -> Section:
    """What all rows of an experiment agree on."""
    parts = []
    for experiment in summary.experiments:
        rows = summary.of(experiment)
        times = sorted(row.time for row in rows if row.time)
        facts = {
            "Seeds": ", ".join(map(str, summary.seeds(experiment))),
            "Test examples": _each(f"{row.examples:,}" for row in rows),
            "About": summary.setting(experiment, "about") or "",
            "Settings": _shared([{k: v for k, v in row.config.items() if k not in _ELSEWHERE} for row in rows]),
            "Versions": _shared([row.versions for row in rows]),
            "Revision": _each(row.revision or "" for row in rows),
            "Run": " to ".join(dict.fromkeys((times[0], times[-1]))) if times else "",
        }
        cells = pd.DataFrame([(k, v) for k, v in facts.items() if v], columns=["Fact", "Value"])
        parts.append(Group(tables=[tables.words("runs", experiment, summary.title(experiment), cells)]))
    return Section("runs", "What was run", parts=parts)


_ELSEWHERE = ("title", "about", "certified_on")  # settings that the report shows at another place


def _each(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _shared(mappings: Sequence[Mapping[str, object]]) -> str:
    first = mappings[0]
    return ", ".join(f"{key} {first[key]}" for key in first if all(m.get(key) == first[key] for m in mappings))


SECTIONS: tuple[Maker, ...] = (certified, outcomes, operating_point, against_time, selective, inside, runs)
