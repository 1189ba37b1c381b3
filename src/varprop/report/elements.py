"""Tables and figures as HTML elements."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from varprop.report.figures import Drawing
from varprop.report.formats import Cell, Table, Words
from varprop.report.style import Style
from varprop.report.svg import svg
from varprop.report.verdicts import BETTER, WORSE, judge


def table(found: Table, caption: str, styles: dict[str, Style], *, differences: bool = False) -> str:
    heads = "".join(
        f'<th scope="col" class="number">{escape(c.title)} <span aria-hidden="true">{c.arrow}</span>'
        f'<span class="hidden">, {"higher" if c.higher else "lower"} is better</span>'
        f"<small>{escape(c.unit) or '&nbsp;'}</small></th>"
        for c in found.columns
    )
    lines = "".join(
        f"<tr>{_name(name, styles)}{''.join(_cell(cell, differences) for cell in cells)}</tr>"
        for name, cells in found.lines
    )
    return _wrapped(found.title, caption, f'<th scope="col">Method</th>{heads}', lines)


def words(found: Words, caption: str, styles: dict[str, Style]) -> str:
    heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in found.columns)
    lines = "".join(f"<tr>{_name(line[0], styles)}{''.join(map(_word, line[1:]))}</tr>" for line in found.lines)
    return _wrapped(found.title, caption, heads, lines)


def _word(text: str) -> str:
    verdict = next((word for word in (BETTER, WORSE) if text.startswith(f"{word} ")), None)
    return f'<td class="{verdict}">{escape(text)}</td>' if verdict else f"<td>{escape(text)}</td>"


def _name(method: str, styles: dict[str, Style]) -> str:
    return f'<th scope="row" style="--series:var(--{styles[method].role})">{escape(method)}</th>'


def _wrapped(title: str, caption: str, heads: str, lines: str) -> str:
    return (
        f'<p class="note">{escape(caption)}</p><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(title)}"><table class="results">'
        f'<caption class="hidden">{escape(caption)}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _cell(cell: Cell, differences: bool) -> str:
    error = f"<small>± {cell.sem}</small>" if cell.sem else ""
    if not differences:
        mean = f"<b>{cell.mean}</b>" if cell.best else cell.mean
        beside = f'<small class="paper">paper {cell.beside}</small>' if cell.paper else ""
        return f'<td class="number">{mean}{error}{beside}</td>'
    verdict = judge(cell.estimate, cell.column, errors=2)
    if verdict not in (BETTER, WORSE):
        return f'<td class="number">{cell.mean}{error}</td>'
    return f'<td class="number {verdict}">{cell.mean}<span class="hidden"> {verdict}</span>{error}</td>'


def folded(title: str, body: str, *, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{escape(title)}</summary>{body}</details>"


def grid(style: str, experiment: str, drawings: Iterable[Drawing]) -> str:
    return f'<div class="{style}">{"".join(figures(experiment, drawings))}</div>'


def figures(experiment: str, drawings: Iterable[Drawing]) -> Iterable[str]:
    for drawing in drawings:
        for i, (alt, figure) in enumerate(drawing.panels):
            name = f"{''.join(c if c.isalnum() else '-' for c in experiment)}-{drawing.name}-{i}"
            caption = f"<figcaption>{escape(drawing.title)}</figcaption>" if len(drawing.panels) == 1 else ""
            yield f"<figure>{caption}{svg(figure, name, alt)}</figure>"
