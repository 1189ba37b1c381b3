"""The report as one HTML file: tables, figures and the slider over risk budgets. It asks for nothing from a network."""

from __future__ import annotations

import io
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup

from varprop.evaluation.methods import method_of
from varprop.report import shown_methods
from varprop.report.figures import Drawing
from varprop.report.style import PALETTE, styles
from varprop.report.summary import Summary
from varprop.report.tables import Table


@dataclass(frozen=True)
class Group:
    """Some tables and figures of a section."""

    title: str = ""
    text: Sequence[str] = ()
    """Paragraphs; the first stands out."""
    tables: Sequence[Table] = ()
    drawings: Sequence[Drawing] = ()
    folded: bool | None = None
    """Whether a reader must unfold it; None for what cannot be folded."""


@dataclass(frozen=True)
class Section:
    """A chapter of the page."""

    name: str
    title: str
    note: str = ""
    parts: Sequence[Group] = ()
    slider: dict[str, Any] | None = None
    """Operating points to look up, as JSON."""


def render(summary: Summary, sections: Sequence[Section]) -> str:
    """The whole file."""
    loader = jinja2.PackageLoader("varprop.report", "page")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.filters["image"] = _image
    roles = {slug: style.role for slug, style in styles(summary.methods).items()}
    return environment.get_template("template.html").render(
        title=f"Results on {_listed([*map(summary.title, summary.experiments)])}",
        lead=_lead(summary),
        palette=PALETTE,
        sections=sections,
        roles=roles,
    )


def _image(drawing: Drawing) -> tuple[str, list[tuple[float, float, str]]]:
    """The figure as SVG, and its tooltips in percent of width and height.

    As an image of its own it shares no names or styles with the page.
    """
    fig = drawing.figure
    fig.draw_without_rendering()
    fig.set_layout_engine("none")  # else it is found anew each time the figure is saved: half of the time
    out = io.StringIO()
    fig.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    tooltips = []
    for axes, x, y, text in drawing.tooltips:
        across, up = fig.transFigure.inverted().transform(axes.transData.transform((x, y)))
        tooltips.append((round(100 * float(across), 2), round(100 - 100 * float(up), 2), text))
    return Markup(f"data:image/svg+xml,{_shortened(out.getvalue())}"), tooltips


def _shortened(svg: str) -> str:
    """For a URI in double quotes, half as long: without what no screen shows, and with each style written once."""
    svg = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s+", " ", svg).replace("> <", "><").replace("xlink:href", "href").strip()
    svg = re.sub(r' (xmlns:xlink="[^"]*"|transform="rotate\(-0 [^"]*")', "", svg)
    used = set(re.findall(r"#(\w+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", svg)
    known: dict[str, int] = {}
    svg = re.sub(r' style="([^"]*)"', lambda found: f' class="s{known.setdefault(found[1], len(known))}"', svg)
    svg = re.sub(r"<[^>]*>", lambda tag: _rounded(tag[0]), svg)
    rules = "".join(f".s{number}{{{style}}}" for style, number in known.items())
    return urllib.parse.quote(svg.replace("</svg>", f"<style>{rules}</style></svg>"), safe="<> /=:;,()'+{}*!~@")


def _rounded(tag: str) -> str:
    """Two digits after the point, and quotes that a URI need not escape."""
    tag = re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), tag)
    return re.sub(r'="([^"\']*)"', r"='\1'", tag)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _lead(summary: Summary) -> str:
    shown = [method_of(slug).title for slug in shown_methods.main(summary.methods)]
    more = len(summary.methods) - len(shown)
    others = f" and {more} variant{'s' * (more > 1)} of these" if more else ""
    counts = sorted({len(summary.seeds(experiment)) for experiment in summary.experiments})
    several = f"{counts[0]} seeds each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    seeds = several if counts[-1] > 1 else "one seed: there are no standard errors"
    return (
        f"How well {len(summary.methods)} methods know when they are wrong, and what that costs: "
        f"{_listed(shown)}{others}; {seeds}."
    )
