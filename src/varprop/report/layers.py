"""Figures with one line per module of the network: learned scales, and fidelity to Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from varprop.evaluation.methods import method_of
from varprop.report.figures import ByRun, Drawing, Tooltip
from varprop.report.style import IDEAL, INK, PALETTE, SURFACE, Style, drawable, figure, log_axis

_LONGEST = 34  # characters of a path that a narrow page has room for
_POINT: dict[str, Any] = {"ms": 4.8, "mec": SURFACE, "mew": 0.5, "elinewidth": 1, "zorder": 3}


def scales(experiment: str, runs: ByRun[Mapping[str, float]], styles: dict[str, Style]) -> Drawing | None:
    """Learned α per module: a dot per seed, and their geometric mean. 1 leaves the variance as it was propagated."""
    found = [(path, *run, alpha) for run, alphas in runs.items() for path, alpha in alphas.items() if drawable(alpha)]
    if not found:
        return None
    data = pd.DataFrame(found, columns=["path", "method", "seed", "alpha"])
    logs = np.log(data["alpha"]).groupby([data["method"], data["path"]], sort=False)
    data["geometric_mean"] = np.exp(logs.transform("mean"))
    low, high = data["alpha"].min(), data["alpha"].max()
    fig, height, tooltips = _draw_modules(np.exp(logs.mean()), np.nan * logs.mean(), styles, "α = ")
    (axes,) = fig.axes
    seeds = height.loc[list(zip(data["method"], data["path"], strict=True))]
    axes.scatter(data["alpha"], seeds, 11, [styles[m].colour for m in data["method"]], alpha=0.35, lw=0, zorder=2)
    log_axis(axes.xaxis, [low, high, 0.8, 1.25])
    axes.axvline(1, **IDEAL)
    axes.set_xlabel("Variance scale α (1 = as propagated)", loc="right")
    alt = f"Learned variance scale of {data['path'].nunique()} modules, from {low:.2g} to {high:.2g}"
    return Drawing(experiment, "scales", "Learned variance scales", alt, fig, data, tooltips)


def fidelity(experiment: str, runs: ByRun[Sequence[Mapping[str, Any]]], styles: dict[str, Style]) -> list[Drawing]:
    """Variance ratio and error of the mean per module, against sampled networks.

    Of propagation before calibration, where there is that: scales make up for errors, and would hide them.
    """
    entries = [{"method": method, **entry} for (method, _), modules in runs.items() for entry in modules]
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
        _fidelity(experiment, found, styles, "variance_ratio", f"Fidelity of the variance, {when}", ratio),
        _fidelity(experiment, found, styles, "mean_error", f"Fidelity of the mean, {when}", error),
    ]
    return [drawing for drawing in drawn if drawing is not None]


def _fidelity(
    experiment: str, found: pd.DataFrame, styles: dict[str, Style], name: str, title: str, label: str
) -> Drawing | None:
    found = found[found[name].map(drawable)]
    if not len(found):
        return None
    plain = None
    if name == "mean_error":
        plain = found.groupby(level="path", sort=False)["plain_error"].first()
    fig, _, tooltips = _draw_modules(found[name], found[f"{name}_sem"], styles, plain=plain)
    (axes,) = fig.axes
    if plain is None:
        log_axis(axes.xaxis, [found[name].min(), found[name].max(), 0.8, 1.25])
        axes.axvline(1, **IDEAL)
    else:
        axes.set_xlim(0, 1.08 * np.nanmax([plain.max(), found[name].max()]))
    axes.set_xlabel(label, loc="right")
    spans = found.groupby(level="method", sort=False)[name].agg(["min", "max"])
    words = "; ".join(f"{method_of(m).title} from {low:.2g} to {high:.2g}" for m, low, high in spans.itertuples())
    data = found[[name, f"{name}_sem", "plain_error"]].reset_index()
    stem, alt = f"fidelity-{name.replace('_', '-')}", f"{label}, per module: {words}"
    return Drawing(experiment, stem, title, alt, fig, data, tooltips)


def _draw_modules(
    values: pd.Series, errors: pd.Series, styles: dict[str, Style], symbol: str = "", plain: pd.Series | None = None
) -> tuple[Figure, pd.Series, tuple[Tooltip, ...]]:
    """Values by method and path, one line of the figure per path; and those of the plain network, by path.

    Returns how high each value stands, too.
    """
    paths, methods = list(values.index.unique("path")), list(values.index.unique("method"))
    fig, axes = _axes_of(paths)
    # Methods share a line of height 1 without covering each other.
    offsets = [0.36 * (i - (len(methods) - 1) / 2) / max(1, len(methods) - 1) for i in range(len(methods))]
    height = pd.Series([paths.index(p) + offsets[methods.index(m)] for m, p in values.index], values.index)
    tooltips = []
    if plain is not None:
        axes.plot(plain, range(len(paths)), "|", ms=8, mew=1.6, color=PALETTE["mean"], zorder=2, label="plain network")
        known = [(y, path, x) for y, (path, x) in enumerate(plain.items()) if math.isfinite(x)]
        tooltips += [Tooltip(axes, x, y, f"{path}, plain network: {x:.3g}") for y, path, x in known]
    for method in methods:
        style, title, at, y = styles[method], method_of(method).title, values[method], height[method]
        axes.errorbar(at, y, xerr=errors[method], fmt=style.marker, color=style.colour, label=title, **_POINT)
        tooltips += [Tooltip(axes, x, y[path], f"{path}, {title}: {symbol}{x:.3g}") for path, x in at.items()]
    fig.legend(loc="outside lower center", ncols=4, handletextpad=0.3, columnspacing=1.4)
    return fig, height, tuple(tooltips)


def _axes_of(paths: Sequence[str]) -> tuple[Figure, Axes]:
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
