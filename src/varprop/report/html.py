"""The report as one HTML file: tables, figures and the operating-point panel. It asks for nothing from a network."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from varprop.report import tables
from varprop.report.columns import Column
from varprop.report.figures import Drawing
from varprop.report.rows import Row
from varprop.report.style import PALETTE, Style
from varprop.report.summary import Summary
from varprop.report.svg import svg

Drawings = dict[str, list[Drawing]]
"""The figures of each experiment."""

_MAIN = ("aurc", "accuracy", "c1", "nll", "ece", "brier")  # the paper's main metrics; the rest can be opened


def page(
    summary: Summary, drawings: Drawings, panel: dict[str, Any], styles: dict[str, Style], problems: Sequence[str]
) -> str:
    """The whole file."""
    read = files("varprop.report").joinpath("page")
    operating = [("operating-point", "Operating point", read.joinpath("panel.html").read_text("utf-8"))]
    sections = [
        ("results", "Results", _section("results", "Results", _results(summary, styles))),
        *(operating if panel["experiments"] else []),
        *_figure_sections(drawings),
        ("runs", "What was run", _section("runs", "What was run", _facts(summary))),
    ]
    return Template(read.joinpath("template.html").read_text("utf-8")).substitute(
        title=escape(f"Results on {_listed(summary.experiments)}"),
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


def _section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}">\n<h2>{escape(title)}</h2>\n{body}\n</section>'


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _lead(summary: Summary) -> str:
    most = max(len(summary.seeds(e)) for e in summary.experiments)
    seeds = f"{most} seeds each" if most > 1 else "one seed: there are no standard errors"
    return (
        f'<p class="lead">How well {len(summary.methods)} methods know when they are wrong, and what that costs: '
        f"{escape(_listed(summary.methods))}; {seeds}.</p>"
        '<p class="note">A method gives each test example an answer and a confidence. Accuracy says how often the '
        "answer is right; AURC, C@R and Φ how well confidence tells right from wrong answers; ECE, ACE, Brier and NLL "
        "whether the probabilities mean what they say. Time is relative to one pass.</p>"
    )


def _results(summary: Summary, styles: dict[str, Style]) -> str:
    parts = []
    for experiment in summary.experiments:
        if len(summary.experiments) > 1:
            parts.append(f"<h3>{escape(experiment)}</h3>")
        found = tables.results(summary, experiment)
        seeds = len(summary.seeds(experiment))
        caption = f"{found.title}. Best in bold." if seeds > 1 else f"{experiment}: one seed. Best in bold."
        parts.append(_table(found, caption, styles))
        methods = summary.methods_in(experiment)
        if len(methods) > 1:
            to = tables.reference(methods)
            compared = tables.differences(summary, experiment, to)
            caption = f"{to} minus each method"
            if seeds > 1:
                caption += ", paired by seed, ± standard error. Coloured where the difference is more than twice its "
                caption += f"standard error: green where it favours {to}, red where not"
            table = _table(compared, f"{caption}.", styles, differences=True)
            parts.append(f"<details open><summary>Paired differences to {escape(to)}</summary>{table}</details>")
    average = tables.macro(summary)
    if len(summary.experiments) > 1 and average.lines:
        caption = "Mean over experiments; standard errors combined as if these were independent."
        parts.append(f"<h3>Average</h3>{_table(average, caption, styles)}")
    return "\n".join(parts)


def _table(table: tables.Table, caption: str, styles: dict[str, Style], *, differences: bool = False) -> str:
    heads = "".join(
        f'<th scope="col" class="number">{escape(c.title)} <span aria-hidden="true">{c.arrow}</span>'
        f'<span class="hidden">, {"higher" if c.higher else "lower"} is better</span>'
        f"<small>{escape(c.unit) or '&nbsp;'}</small></th>"
        for c in table.columns
    )
    lines = "".join(
        f'<tr><th scope="row" style="--series:var(--{styles[name].role})">{escape(name)}</th>'
        f"{''.join(_cell(cell, differences) for cell in cells)}</tr>"
        for name, cells in table.lines
    )
    return (
        f'<p class="note">{escape(caption)}</p><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(table.title)}"><table class="results">'
        f'<caption class="hidden">{escape(caption)}</caption><thead><tr><th scope="col">Method</th>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _cell(cell: tables.Cell, differences: bool) -> str:
    error = f"<small>± {cell.sem}</small>" if cell.sem else ""
    if not differences:
        mean = f"<b>{cell.mean}</b>" if cell.best else cell.mean
        return f'<td class="number">{mean}{error}</td>'
    verdict = clear(cell.estimate.mean, cell.estimate.sem, cell.column)
    if verdict is None:
        return f'<td class="number">{cell.mean}{error}</td>'
    return f'<td class="number {verdict}">{cell.mean}<span class="hidden"> {verdict}</span>{error}</td>'


def clear(mean: float, sem: float, column: Column) -> str | None:
    """Say "better" or "worse" if a difference is more than twice its standard error."""
    if math.isnan(mean) or math.isnan(sem) or abs(mean) <= 2 * sem:
        return None
    return "better" if (mean > 0) == column.higher else "worse"


def _figure_sections(drawings: Drawings) -> list[tuple[str, str, str]]:
    groups = (
        ("pareto", "Reliability and time", _PARETO, ("pareto-",)),
        ("selective", "Risk, coverage and calibration", _SELECTIVE, ("risk-coverage", "reliability")),
        ("layers", "Inside the network", _LAYERS, ("scales", "fidelity-")),
    )
    found = []
    for name, title, note, prefixes in groups:
        parts = []
        for experiment, figures in drawings.items():
            chosen = [d for d in figures if d.name.startswith(prefixes)]
            if chosen:
                heading = f"<h3>{escape(experiment)}</h3>" if len(drawings) > 1 else ""
                parts.append(heading + _group(name, experiment, chosen))
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
    "What calibration learned, a dot per seed, and how near propagated moments are to those of sampled networks, "
    "module by module from the input to the output."
)


def _group(name: str, experiment: str, drawings: Sequence[Drawing]) -> str:
    if name == "pareto":
        order = {f"pareto-{key}": i for i, key in enumerate(_MAIN)}
        main = sorted((d for d in drawings if d.name in order), key=lambda d: order[d.name])
        rest = [d for d in drawings if d.name not in order]
        more = f"<details><summary>More metrics</summary>{_grid('figures', experiment, rest)}</details>" if rest else ""
        return _grid("figures", experiment, main) + more
    small = [d for d in drawings if d.name == "reliability"]
    large = [d for d in drawings if d.name != "reliability"]
    panels = "".join(_grid("figures small", experiment, [d]) for d in small)
    if not panels:
        return _grid("figures", experiment, large)
    left = "".join(_figures(experiment, large))
    title = '<p class="caption">Reliability diagrams (ECE ×100)</p>'
    return f'<div class="figures pair">{left}<div>{title}{panels}</div></div>'


def _grid(style: str, experiment: str, drawings: Iterable[Drawing]) -> str:
    return f'<div class="{style}">{"".join(_figures(experiment, drawings))}</div>'


def _figures(experiment: str, drawings: Iterable[Drawing]) -> Iterable[str]:
    for drawing in drawings:
        for i, (alt, figure) in enumerate(drawing.panels):
            name = f"{''.join(c if c.isalnum() else '-' for c in experiment)}-{drawing.name}-{i}"
            caption = f"<figcaption>{escape(drawing.title)}</figcaption>" if len(drawing.panels) == 1 else ""
            yield f"<figure>{caption}{svg(figure, name, alt)}</figure>"


def _facts(summary: Summary) -> str:
    parts = []
    for experiment in summary.experiments:
        rows = [row for row in summary.rows if row.row == experiment]
        facts = {
            "Seeds": ", ".join(map(str, summary.seeds(experiment))),
            "Test examples": _one_of(f"{row.examples:,}" for row in rows),
            "Settings": _shared([row.config for row in rows]),
            "Versions": _shared([row.versions for row in rows]),
            "Revision": _one_of(row.revision or "" for row in rows),
            "Run": _span(rows),
        }
        items = "".join(f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in facts.items() if v)
        heading = f"<h3>{escape(experiment)}</h3>" if len(summary.experiments) > 1 else ""
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
