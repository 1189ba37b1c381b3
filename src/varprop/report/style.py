"""How figures look: one colour and marker per method in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from varprop.evaluation.methods import method_of

INK, MUTED, FAINT, SURFACE, BETTER = "#1c2127", "#646d78", "#dcdfe3", "#ffffff", "#4caf50"

# Hues after Okabe and Ito, told apart in all common kinds of colour blindness; Monte Carlo from light to dark.
PALETTE = {
    "cvp": "#0067a6",
    "mean": "#57606b",
    "temperature": "#00866a",
    "streamlining": "#b4468c",
    "mc1": "#d9920a",
    "mc2": "#bd6f00",
    "mc3": "#965000",
    "mc4": "#673600",
    "other1": "#7254b8",
    "other2": "#7c7a00",
    "other3": "#a83a2a",
    "other4": "#2f7f93",
}
IDEAL: dict[str, Any] = {"color": MUTED, "lw": 0.9, "ls": (0, (3, 2)), "zorder": 1}
"""The look of a line at the ideal value."""
_MARKERS = {"cvp": "D", "mean": "o", "temperature": "^", "streamlining": "s"}
_DASHES: tuple[Any, ...] = ((0, (1, 1.2)), (0, (3, 1.5)), (0, (6, 1.5)), "-")


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    role: str
    marker: str
    dashes: Any = "-"

    @property
    def colour(self) -> str:
        return PALETTE[self.role]


def styles(slugs: Sequence[str]) -> dict[str, Style]:
    """A style for each method: fixed for those of the main table, Monte Carlo by samples, then others in turn."""
    sampled = sorted((s for s in slugs if method_of(s).samples), key=lambda s: method_of(s).samples or 0)
    found: dict[str, Style] = {}
    for i, slug in enumerate(sampled):
        shade = 4 - round(3 * (len(sampled) - 1 - i) / max(3, len(sampled) - 1))
        # With more sizes than shades, neighbours that share one differ in their dashes.
        found[slug] = Style(f"mc{shade}", "v", _DASHES[(i - len(sampled)) % len(_DASHES)])
    others = [slug for slug in slugs if slug not in found and slug not in _MARKERS]
    for i, slug in enumerate(others):
        found[slug] = Style(f"other{i % 4 + 1}", "PX*p"[i % 4], "-" if i < 4 else "--")
    return {slug: found.get(slug) or Style(slug, _MARKERS[slug]) for slug in slugs}


def figure(width: float, height: float) -> Figure:
    """An empty figure, in inches. Not one of pyplot's: nothing global changes, and nothing needs closing."""
    return Figure(figsize=(width, height), dpi=160, layout="constrained")


def drawable(value: float) -> bool:
    """Whether a logarithmic axis has room for it."""
    return 1e-100 < value < 1e100


def log_axis(axis: XAxis | YAxis, values: Sequence[float]) -> None:
    """A logarithmic axis around the values, with plain numbers at round values or at powers of 2, 4 or 10."""
    low, high = min(values), max(values)
    pad = (high / low) ** 0.1 * 1.1
    low, high = low / pad, high * pad
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    # Powers are too far apart for a narrow range.
    wide = LogLocator(next((b for b in (2, 4) if high / low <= b**8), 10))
    axis.set_major_locator(wide if high / low > 4 else MaxNLocator(4, steps=[1, 2, 5, 10]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def drawing_style() -> AbstractContextManager[None]:
    """matplotlib's settings while figures are made and saved, whatever the user's are."""
    return mpl.rc_context(fname=Path(__file__).with_name("page") / "figures.mplstyle")
