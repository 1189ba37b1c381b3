"""How figures look: one colour and marker per method in all of them, and colours that a page can exchange.

Figures are drawn once, in the colours of a light page. Each colour stands for a role, and the SVG in the page refers
to roles (CSS variables) in place of colours, so that the same drawing serves a dark page too.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from varprop.errors import ResultsError

DPI = 200  # of layouts too: the width of a text depends on it
INK, MUTED, FAINT, SURFACE, BETTER = "#1c2127", "#646d78", "#dcdfe3", "#fefefe", "#4caf50"

# role: (on a light page, on a dark one). Hues after Okabe and Ito, told apart in all common kinds of colour blindness.
PALETTE = {
    "cvp": ("#0067a6", "#5db4f2"),
    "mean": ("#57606b", "#b3bac3"),
    "temperature": ("#00866a", "#45c9a8"),
    "streamlining": ("#b4468c", "#e792c8"),
    "mc1": ("#d9920a", "#b37a24"),
    "mc2": ("#bd6f00", "#d08f30"),
    "mc3": ("#965000", "#eba440"),
    "mc4": ("#673600", "#ffdca6"),
    "other1": ("#7254b8", "#b7a2f2"),
    "other2": ("#7c7a00", "#cbc84e"),
    "other3": ("#a83a2a", "#f0907f"),
    "other4": ("#2f7f93", "#7ccbdc"),
}
ROLES = {INK: "currentColor", MUTED: "var(--muted)", FAINT: "var(--faint)", SURFACE: "var(--surface)"}
ROLES |= {BETTER: "var(--better)"} | {light: f"var(--{role})" for role, (light, _) in PALETTE.items()}

_FAMILIES = {"cvp": ("cvp", "D"), "mean": ("mean", "o"), "temperature": ("temperature", "^")}
_FAMILIES |= {"streamlining": ("streamlining", "s")}


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    role: str
    marker: str
    dashes: Any = "-"

    @property
    def colour(self) -> str:
        return PALETTE[self.role][0]


def samples_of(method: str) -> int | None:
    """8 for ``MC-8``; None for what is not Monte Carlo."""
    found = re.fullmatch(r"MC[\s-]?(\d+)", method, re.IGNORECASE)
    return int(found[1]) if found else None


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """A style for each method: fixed for those of the paper, Monte Carlo from light to dark by samples, then others."""
    sampled = sorted((m for m in methods if samples_of(m) is not None), key=lambda m: samples_of(m) or 0)
    dashes: list[Any] = [(0, (1, 1.2)), (0, (3, 1.5)), (0, (6, 1.5)), "-"]
    found: dict[str, Style] = {}
    for i, method in enumerate(sampled):
        step = 3 - round(3 * (len(sampled) - 1 - i) / max(3, len(sampled) - 1))
        # With more sizes than shades, neighbours that share one differ in their dashes.
        found[method] = Style(f"mc{step + 1}", "v", dashes[(i - len(sampled)) % len(dashes)])
    others = 0
    for method in methods:
        if method.lower() in _FAMILIES:
            found[method] = Style(*_FAMILIES[method.lower()])
        elif method not in found:
            found[method] = Style(f"other{others % 4 + 1}", "PX*p"[others % 4], "-" if others < 4 else "--")
            others += 1
    return {method: found[method] for method in methods}


def matplotlib(part: str = "matplotlib") -> Any:
    """A module of matplotlib, which is an extra: imported when the first figure is drawn."""
    try:
        return importlib.import_module(part)
    except ImportError as error:
        raise ResultsError("figures need matplotlib: pip install 'varprop[report]'") from error


def figure(width: float, height: float) -> Any:
    """An empty figure, in inches. Not one of pyplot's: nothing global changes, and nothing needs closing."""
    return matplotlib("matplotlib.figure").Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def settle(figure: Any) -> None:
    """Fix the layout, which would otherwise be found anew each time the figure is drawn: half of the time."""
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


@contextmanager
def drawing_style() -> Iterator[None]:
    """matplotlib's settings while figures are made and saved, whatever the user's are."""
    mpl = matplotlib()
    settings = {
        "font.family": "DejaVu Sans",
        "font.size": 8.5,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": MUTED,
        "axes.linewidth": 0.8,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.unicode_minus": False,
        "grid.color": FAINT,
        "grid.linewidth": 0.6,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "svg.fonttype": "none",
        "svg.hashsalt": "varprop",
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield
