"""Figures as files, and as SVG that takes its colours and fonts from the page around it."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from varprop.report.figures import Drawing
from varprop.report.style import DPI, ROLES, settle


def save(drawing: Drawing, folder: Path, experiment: str | None) -> list[Path]:
    """Write PNG, PDF and CSV of a figure of one experiment, or of all; returns their paths."""
    stem = folder / (drawing.name if experiment is None else f"{experiment}-{drawing.name}")
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf", "csv")]
    settle(drawing.whole)
    drawing.whole.savefig(paths[0], dpi=DPI, facecolor="white")
    # Without its date, the same figure is the same file.
    drawing.whole.savefig(paths[1], dpi=DPI, metadata={"CreationDate": None})
    paths[2].write_text(csv_text(drawing.header, drawing.cells), encoding="utf-8")
    return paths


def csv_text(header: Sequence[str], cells: Iterable[Sequence[Any]]) -> str:
    """Full precision; nothing where a number is missing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_plain(cell) for cell in row] for row in cells)
    return out.getvalue()


def _plain(cell: Any) -> Any:
    if isinstance(cell, float):  # NumPy's float64 is one, but its repr is not a number
        return "" if math.isnan(cell) else repr(float(cell))
    return cell


def svg(figure: Any, name: str, alt: str) -> str:
    """An ``<svg>`` element for a page: no colour, font, id or style of its own that could leak or clash."""
    settle(figure)
    out = io.StringIO()
    figure.savefig(out, format="svg", dpi=160, transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(?:xlink:)?href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r"'DejaVu Sans'", "inherit", text)
    for colour, role in ROLES.items():
        text = re.sub(colour, role, text, flags=re.IGNORECASE)
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    opening = f'<svg class="figure" role="img" aria-label="{_attribute(alt)}" viewBox="{box[1]}">'
    return re.sub(r"\n\s*", "\n", re.sub(r"^<svg[^>]*>", lambda _: opening, text)).strip()


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
