"""Scatter plots of predicted against sampled moments behind LayerNorms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from varprop.report.figures import Drawing
from varprop.report.norms import QUANTITIES, Norms
from varprop.report.style import MUTED, Style, figure

_WORDS = {"mean": "mean", "var": "variance"}


def norms(found: Sequence[Norms], title: str, styles: dict[str, Style]) -> Drawing | None:
    """A line of two plots per comparison: means and variances, with the error of each rule in the legend."""
    if not found:
        return None
    whole = figure(6.4, 2.9 * len(found))
    grid = whole.subplots(len(found), 2, squeeze=False)
    panels, cells = [], []
    for line, each in zip(grid, found, strict=True):
        for axes, quantity in zip(line, QUANTITIES, strict=True):
            single = figure(3.6, 3.2)
            for at in (axes, single.subplots()):
                _draw(at, each, quantity, styles)
            errors = ", ".join(f"{rule} {rmse[quantity]:.3g}" for rule, rmse in each.rmse.items())
            panels.append((f"{each.title}: predicted against sampled {_WORDS[quantity]}, RMSE {errors}", single))
            cells += [(each.title, quantity, *map(float, point)) for point in each.points[quantity]]
    rules = tuple(found[0].rmse)
    alt = f"{title}: predicted against sampled moments of single activations"
    return Drawing(
        "norms", title, alt, whole, tuple(panels), ("comparison", "quantity", "sampled", *rules), tuple(cells)
    )


def _draw(axes: Any, found: Norms, quantity: str, styles: dict[str, Style]) -> None:
    points = found.points[quantity]
    for i, rule in enumerate(found.rmse, start=1):
        error = f"{rule}, RMSE {found.rmse[rule][quantity]:.3g}"
        # The first rule lies on top: it is nearer to the diagonal and covers less.
        look = {"ms": 2.4, "mew": 0, "alpha": 0.5, "color": styles[rule].colour, "zorder": 3 - i / 10}
        # As an image: thousands of points would make a page of megabytes.
        axes.plot(points[:, 0], points[:, i], styles[rule].marker, label=error, rasterized=True, **look)
    ends = [float(points[:, 0].min()), float(points[:, 0].max())]
    axes.plot(ends, ends, color=MUTED, lw=0.9, ls=(0, (3, 2)), zorder=4)
    axes.set(xlabel=f"Sampled {_WORDS[quantity]}", ylabel=f"Predicted {_WORDS[quantity]}")
    axes.set_title(found.title, fontsize=8.5)
    # Below, so that it covers no points: sampled variances are small where a rule's are too large.
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), markerscale=2, handletextpad=0.2, borderpad=0.1)


def table(found: Sequence[tuple[str, Norms]]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """The errors as a table: experiment, comparison, and for each rule the error of mean and variance."""
    header = ("experiment", "comparison", "rule", "rmse_mean", "rmse_var", "activations", "samples")
    return header, [
        (name, each.title, rule, rmse["mean"], rmse["var"], each.activations, each.samples)
        for name, each in found
        for rule, rmse in each.rmse.items()
    ]
