"""Figures with one line per module of the network: learned scales, and fidelity to Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from varprop.evaluation.methods import method_of
from varprop.evaluation.results import Row
from varprop.report.figures import Drawing, Spot
from varprop.report.style import IDEAL, INK, PALETTE, SURFACE, Style, drawable, figure, log_axis

_LONGEST = 34  # characters of a path that a narrow page has room for


def scales(experiment: str, rows: Sequence[Row], styles: dict[str, Style]) -> Drawing | None:
    """Learned α per module: a dot per seed, and their geometric mean. 1 leaves the variance as it was propagated."""
    found = [(path, row.method, row.seed, a) for row in rows for path, a in (row.scales or {}).items() if drawable(a)]
    if not found:
        return None
    data = pd.DataFrame(found, columns=["path", "method", "seed", "alpha"])
    logs = np.log(data["alpha"]).groupby([data["path"], data["method"]], sort=False)
    data["geometric_mean"] = np.exp(logs.transform("mean"))
    paths, methods = list(data["path"].unique()), list(data["method"].unique())
    fig, axes = _list_of(paths)
    low, high = data["alpha"].min(), data["alpha"].max()
    log_axis(axes.xaxis, [low, high, 0.8, 1.25])
    axes.axvline(1, **IDEAL)
    spots = []
    for method, offset in zip(methods, _offsets(len(methods)), strict=True):
        style, chosen = styles[method], data[data["method"] == method]
        y = chosen["path"].map(paths.index) + offset
        axes.plot(chosen["alpha"], y, "o", ms=3.4, color=style.colour, alpha=0.35, mew=0, zorder=2)
        look: dict[str, Any] = {"ms": 5, "mec": SURFACE, "mew": 0.5, "zorder": 3, "label": method_of(method).title}
        means, title = chosen.drop_duplicates("path"), method_of(method).title
        axes.plot(means["geometric_mean"], y[means.index], style.marker, color=style.colour, **look)
        told = zip(means["geometric_mean"], y[means.index], means["path"], strict=True)
        spots += [Spot(axes, a, height, f"{path}, {title}: α = {a:.3g}") for a, height, path in told]
    axes.set_xlabel("Variance scale α (1 = as propagated)", loc="right")
    _legend(fig)
    alt = f"Learned variance scale of {len(paths)} modules, from {low:.2g} to {high:.2g}"
    return Drawing(experiment, "scales", "Learned variance scales", alt, fig, data, tuple(spots))


def fidelity(experiment: str, rows: Sequence[Row], styles: dict[str, Style]) -> list[Drawing]:
    """Variance ratio and error of the mean per module, against sampled networks.

    Of propagation before calibration, where rows have it: scales make up for errors, and would hide them.
    """
    entries = [{"method": row.method, **entry} for row in rows for entry in row.fidelity or ()]
    bare = [entry for entry in entries if entry.get("calibrated") is False]
    if not entries:
        return []
    numbers = ["variance_ratio", "mean_error", "plain_error"]
    grouped = (
        pd.DataFrame(bare or entries)
        .reindex(columns=["method", "path", *numbers])
        .astype(dict.fromkeys(numbers, float))
        .groupby(["method", "path"], sort=False)
    )
    found = grouped[numbers].mean().join(grouped[numbers].sem().fillna(0).add_suffix("_sem"))
    when = "before calibration" if bare else "after calibration"
    ratio = "Propagated / sampled variance (1 = exact)"
    error = "Error of the mean (standard deviations), lower is better"
    drawn = [
        _measured(experiment, found, styles, "variance_ratio", f"Fidelity of the variance, {when}", ratio),
        _measured(experiment, found, styles, "mean_error", f"Fidelity of the mean, {when}", error),
    ]
    return [drawing for drawing in drawn if drawing is not None]


def _measured(
    experiment: str, found: pd.DataFrame, styles: dict[str, Style], name: str, title: str, label: str
) -> Drawing | None:
    found = found[found[name].map(drawable)]
    if not len(found):
        return None
    paths = list(found.index.unique("path"))
    fig, axes = _list_of(paths)
    look: dict[str, Any]
    spots = []
    if name == "variance_ratio":
        log_axis(axes.xaxis, [found[name].min(), found[name].max(), 0.8, 1.25])
        axes.axvline(1, **IDEAL)
    else:
        plain = found.groupby(level="path", sort=False)["plain_error"].first()
        look = {"ms": 8, "mew": 1.6, "color": PALETTE["mean"], "zorder": 2, "label": "plain network"}
        axes.plot(plain, range(len(paths)), "|", **look)
        spots += [Spot(axes, x, y, f"{paths[y]}, plain network: {x:.3g}") for y, x in enumerate(plain)]
        axes.set_xlim(0, 1.08 * np.nanmax([plain.max(), found[name].max()]))
    methods = list(found.index.unique("method"))
    for method, offset in zip(methods, _offsets(len(methods)), strict=True):
        style, at = styles[method], found.loc[method]
        y = [paths.index(path) + offset for path in at.index]
        look = {"color": style.colour, "ms": 4.6, "mec": SURFACE, "mew": 0.5, "elinewidth": 1, "zorder": 3}
        axes.errorbar(at[name], y, xerr=at[f"{name}_sem"], fmt=style.marker, label=method_of(method).title, **look)
        told = zip(at.index, at[name], y, strict=True)
        spots += [Spot(axes, x, h, f"{path}, {method_of(method).title}: {x:.3g}") for path, x, h in told]
    axes.set_xlabel(label, loc="right")
    _legend(fig)
    spans = found.groupby(level="method", sort=False)[name].agg(["min", "max"])
    words = "; ".join(f"{method_of(m).title} from {low:.2g} to {high:.2g}" for m, low, high in spans.itertuples())
    data = found[[name, f"{name}_sem", "plain_error"]].reset_index()
    stem, alt = f"fidelity-{name.replace('_', '-')}", f"{label}, per module: {words}"
    return Drawing(experiment, stem, title, alt, fig, data, tuple(s for s in spots if math.isfinite(s.x)))


def _offsets(count: int) -> list[float]:
    """Where in a line of height 1 the methods go, so that they do not cover each other."""
    return [0.36 * (i - (count - 1) / 2) / max(1, count - 1) for i in range(count)]


def _list_of(paths: Sequence[str]) -> tuple[Figure, Axes]:
    """Axes with one line per path, the first on top. A long list gets thin lines, and names for some."""
    line = min(0.2, max(0.07, 9 / len(paths)))
    every = math.ceil(0.15 / line)
    fig = figure(3.9, 1.0 + max(3, len(paths)) * line)
    axes = fig.subplots()
    axes.set_ylim(len(paths) - 0.4, -0.6)
    names = [path if len(path) <= _LONGEST else f"…{path[1 - _LONGEST :]}" for path in paths]  # ends tell them apart
    axes.set_yticks(range(0, len(paths), every), names[::every], fontsize=7.5, color=INK)
    axes.tick_params(axis="y", length=0)
    return fig, axes


def _legend(fig: Figure) -> None:
    fig.legend(loc="outside lower center", ncols=4, handletextpad=0.3, columnspacing=1.4)
