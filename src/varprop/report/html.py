"""The report as one HTML file: tables, figures and the operating-point panel. It asks for nothing from a network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from varprop.evaluation.rows import Row
from varprop.report import elements, lineup, tables, verdicts
from varprop.report.figures import Drawing
from varprop.report.formats import Words
from varprop.report.style import PALETTE, Style
from varprop.report.summary import Summary

Drawings = dict[str, list[Drawing]]
"""The figures of each experiment."""

_MAIN = ("aurc", "accuracy", "c1", "nll", "ece", "brier")  # the paper's main metrics; the rest can be opened


def page(
    summary: Summary,
    drawings: Drawings,
    panel: dict[str, Any],
    styles: dict[str, Style],
    problems: Sequence[str],
    opening: Drawing | None = None,
) -> str:
    """The whole file. ``opening`` is the figure above all tables."""
    read = files("varprop.report").joinpath("page")
    operating = [("operating-point", "Operating point", read.joinpath("panel.html").read_text("utf-8"))]
    sections = [
        ("results", "Results", _section("results", "Results", _opening(opening) + _results(summary, styles))),
        *_verdicts(summary, styles),
        *(operating if panel["experiments"] else []),
        *_figure_sections(summary, drawings),
        ("runs", "What was run", _section("runs", "What was run", _facts(summary))),
    ]
    return Template(read.joinpath("template.html").read_text("utf-8")).substitute(
        title=escape(f"Results on {_listed([*map(summary.title, summary.experiments)])}"),
        palette=_palette(),
        style=read.joinpath("style.css").read_text("utf-8"),
        lead=_lead(summary),
        problems="".join(f'<p class="problem" role="note">{escape(problem)}</p>' for problem in problems),
        nav=" ".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in sections),
        sections="\n".join(body for _, _, body in sections),
        footer="<p>The same figures as PNG, PDF and CSV are in the folder <code>figures</code> beside this file, the "
        "tables as text, Markdown, CSV and LaTeX in <code>tables</code>.</p>",
        # "</script>" in a name must not end the element.
        data=json.dumps(panel, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
        script=read.joinpath("panel.js").read_text("utf-8"),
    )


def _palette() -> str:
    light = "".join(f"--{role}:{colours[0]};" for role, colours in PALETTE.items())
    dark = "".join(f"--{role}:{colours[1]};" for role, colours in PALETTE.items())
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def _opening(drawing: Drawing | None) -> str:
    if drawing is None or len(drawing.panels) < 2:
        return ""  # of one experiment it is the first of the plots below
    return f'<p class="note">{_PARETO}</p>' + elements.grid("figures", "all", [drawing])


def _section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}">\n<h2>{escape(title)}</h2>\n{body}\n</section>'


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _lead(summary: Summary) -> str:
    shown = lineup.main(summary.methods)
    more = len(summary.methods) - len(shown)
    others = f" and {more} variant{'s' * (more > 1)} of these" if more else ""
    counts = sorted({len(summary.seeds(e)) for e in summary.experiments})
    several = f"{counts[0]} seeds each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    seeds = several if counts[-1] > 1 else "one seed: there are no standard errors"
    return (
        f'<p class="lead">How well {len(summary.methods)} methods know when they are wrong, and what that costs: '
        f"{escape(_listed(shown))}{others}; {seeds}.</p>"
        '<p class="note">A method gives each test example an answer and a confidence. Accuracy says how often the '
        "answer is right; AURC, C@R and Φ how well confidence tells right from wrong answers; ECE, ACE, Brier and NLL "
        "whether the probabilities mean what they say. Time is relative to one pass.</p>"
    )


def _results(summary: Summary, styles: dict[str, Style]) -> str:
    """The main table of each experiment and of their average; what else there is can be opened below it."""
    stacks = tables.stacked(summary)
    parts = []
    for experiment in summary.experiments:
        if len(summary.experiments) > 1:
            parts.append(f"<h3>{escape(summary.title(experiment))}</h3>")
        for name, caption in _KINDS.items():
            parts += [_kind(caption, t, styles) for t in _named(stacks, name, experiment)]
        parts += _differences(summary, experiment, styles)
    averages = {name: _named(stacks, name, "average") for name in _KINDS}
    if any(averages.values()):
        parts.append("<h3>Average</h3>")
    for name, caption in _KINDS.items():
        for found in averages[name]:
            ours = found.compared and name != "ablation" and len(averages[name]) > 1
            parts.append(_kind(f"{caption}, of the paper's rows" if caption and ours else caption, found, styles))
    return "\n".join(parts)


_KINDS = {"main": "", "extended": "More metrics", "sampling": "All sample sizes", "ablation": "Ablation"}


def _named(stacks: dict[str, tables.Stack], name: str, experiment: str) -> list[tables.Table]:
    stack = stacks.get(name)
    return [t for t in stack.tables if t.name == experiment and isinstance(t, tables.Table)] if stack else []


def _kind(caption: str, found: tables.Table, styles: dict[str, Style]) -> str:
    made = elements.table(found, f"{found.title[:1].upper()}{found.title[1:]}. Best in bold.", styles)
    return elements.folded(caption, made) if caption else made


def _differences(summary: Summary, experiment: str, styles: dict[str, Style]) -> list[str]:
    methods = summary.methods_in(experiment)
    if len(methods) < 2:
        return []
    to = tables.reference(methods)
    found = tables.differences(summary, experiment, to)
    caption = f"{to} minus each method"
    if len(summary.seeds(experiment)) > 1:
        caption += ", paired by seed, ± standard error. Coloured where the difference is more than twice its "
        caption += f"standard error: green where it favours {to}, red where not"
    made = elements.table(found, f"{caption}.", styles, differences=True)
    return [elements.folded(f"Paired differences to {to}", made)]


def _verdicts(summary: Summary, styles: dict[str, Style]) -> list[tuple[str, str, str]]:
    """In words: the average is open, single experiments are folded where there are several."""
    parts = [
        (
            "One against all",
            "Better or worse by more than one standard error of the differences over seeds.",
            verdicts.verdicts(summary),
        ),
        (
            "Order of the ablation",
            "By AURC, beside the order in the paper's average of six benchmarks.",
            verdicts.order(summary),
        ),
    ]
    made = []
    for title, note, stack in parts:
        made += [f"<h3>{title}</h3>"] if stack.tables else []
        for found in stack.tables:
            if isinstance(found, Words):
                opened = found is stack.tables[-1]
                made.append(elements.folded(found.title, elements.words(found, note, styles), opened=opened))
    return [("verdicts", "Verdicts", _section("verdicts", "Verdicts", "\n".join(made)))] if made else []


def _figure_sections(summary: Summary, drawings: Drawings) -> list[tuple[str, str, str]]:
    groups = (
        ("pareto", "Reliability and time", _PARETO, ("pareto-",)),
        ("selective", "Risk, coverage and calibration", _SELECTIVE, ("risk-coverage", "reliability")),
        ("layers", "Inside the network", _LAYERS, ("blocks", "scales", "norms", "fidelity-")),
    )
    found = []
    for name, title, note, prefixes in groups:
        parts = []
        for experiment, figures in drawings.items():
            chosen = [d for d in figures if d.name.startswith(prefixes)]
            if chosen:
                group = _group(name, experiment, chosen)
                first = experiment == summary.experiments[0]
                several = len(drawings) > 1
                called = summary.title(experiment) if experiment in summary.experiments else chosen[0].title
                parts.append(elements.folded(called, group, opened=first) if several else group)
        if parts:
            found.append((name, title, _section(name, title, f'<p class="note">{note}</p>' + "\n".join(parts))))
    return found


_PARETO = (
    "One point per method, with its standard error over seeds. Green is where a method improves on the mean network "
    "and on Monte Carlo sampling: none of these is both as fast and as good."
)
_SELECTIVE = (
    "Curves: the risk of answering only the most confident part of the test set, averaged over seeds; the band is the "
    "standard error of CVP. Diagrams: accuracy in 15 bins of confidence, on the diagonal if calibrated; grey bars show "
    "how many examples lie in each bin."
)
_LAYERS = (
    "What calibration learned, by block or by module: bands are the standard deviation over seeds, dots are seeds. How "
    "near rules for LayerNorm come to sampling, a dot per activation. And how near propagated moments are to those of "
    "sampled networks, from the input to the output."
)


def _group(name: str, experiment: str, drawings: Sequence[Drawing]) -> str:
    if name == "pareto":
        order = {f"pareto-{key}": i for i, key in enumerate(_MAIN)}
        main = sorted((d for d in drawings if d.name in order), key=lambda d: order[d.name])
        rest = [d for d in drawings if d.name not in order]
        more = (
            f"<details><summary>More metrics</summary>{elements.grid('figures', experiment, rest)}</details>"
            if rest
            else ""
        )
        return elements.grid("figures", experiment, main) + more
    small = [d for d in drawings if d.name == "reliability"]
    large = [d for d in drawings if d.name != "reliability"]
    panels = "".join(elements.grid("figures small", experiment, [d]) for d in small)
    if not panels:
        return elements.grid("figures", experiment, large)
    left = "".join(elements.figures(experiment, large))
    title = '<p class="caption">Reliability diagrams (ECE ×100)</p>'
    return f'<div class="figures pair">{left}<div>{title}{panels}</div></div>'


_SAID = ("title", "paper", "stand_in")  # what the page says elsewhere


def _facts(summary: Summary) -> str:
    parts = []
    for experiment in summary.experiments:
        rows = [row for row in summary.rows if row.row == experiment]
        facts = {
            "Seeds": ", ".join(map(str, summary.seeds(experiment))),
            "Test examples": _one_of(f"{row.examples:,}" for row in rows),
            "Paper": summary.relation(experiment),
            "Settings": _shared([{k: v for k, v in row.config.items() if k not in _SAID} for row in rows]),
            "Versions": _shared([row.versions for row in rows]),
            "Revision": _one_of(row.revision or "" for row in rows),
            "Run": _span(rows),
        }
        items = "".join(f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in facts.items() if v)
        heading = f"<h3>{escape(summary.title(experiment))}</h3>" if len(summary.experiments) > 1 else ""
        parts.append(f'{heading}<dl class="facts">{items}</dl>')
    return "\n".join(parts)


def _one_of(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _shared(mappings: Sequence[Any]) -> str:
    """What all rows agree on."""
    first = mappings[0]
    same = [key for key in first if all(m.get(key) == first[key] for m in mappings)]
    return ", ".join(f"{key} {first[key]}" for key in same)


def _span(rows: Sequence[Row]) -> str:
    times = sorted(row.time for row in rows if row.time)
    return "" if not times else times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
