"""Figures with one line per module of the network: learned scales, and fidelity to Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from varprop.evaluation.rows import Row
from varprop.report.figures import Drawing, log_axis
from varprop.report.style import INK, MUTED, SURFACE, Style, figure
from varprop.report.summary import estimate

Fidelity = dict[str, dict[str, dict[str, list[float]]]]
"""Method, module path, quantity: one value per seed."""

_LONGEST = 34  # characters of a path that a narrow page has room for


def scales(rows: Sequence[Row], styles: dict[str, Style]) -> Drawing | None:
    """Learned α per module: a dot per seed, and their geometric mean. 1 leaves the variance as it was propagated."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for path, alpha in (row.scales or {}).items():
            found.setdefault(path, {}).setdefault(row.method, []).append(alpha)
    positive = [a for each in found.values() for values in each.values() for a in values if a > 0]
    if not positive:
        return None
    paths, methods = list(found), list(dict.fromkeys(row.method for row in rows if row.scales))
    fig, axes = _list_of(paths)
    log_axis(axes.xaxis, [*positive, 0.8, 1.25])
    axes.axvline(1, color=MUTED, lw=0.9, ls=(0, (3, 2)), zorder=1)
    cells = []
    for y, path in enumerate(paths):
        for method, offset in zip(methods, _offsets(len(methods)), strict=True):
            values = found[path].get(method, [])
            known = [a for a in values if a > 0]
            mean = math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan
            colour = styles[method].colour
            axes.plot(known, [y + offset] * len(known), "o", ms=3.4, color=colour, alpha=0.35, mew=0, zorder=2)
            axes.plot(mean, y + offset, styles[method].marker, ms=5, color=colour, mec=SURFACE, mew=0.5, zorder=3)
            cells += [(path, method, i, alpha, mean) for i, alpha in enumerate(values)]
    axes.set_xlabel("Variance scale α (1 = as propagated)", loc="right")
    _legend(fig, methods, styles)
    alt = f"Learned variance scale of {len(paths)} modules, from {min(positive):.2g} to {max(positive):.2g}"
    header = ("path", "method", "seed_number", "alpha", "geometric_mean")
    return Drawing("scales", "Learned variance scales", alt, fig, ((alt, fig),), header, tuple(cells))


def fidelity(rows: Sequence[Row], styles: dict[str, Style]) -> list[Drawing]:
    """Variance ratio and error of the mean per module, against sampled networks."""
    found: Fidelity = {}
    for row in rows:
        for entry in row.fidelity or ():
            at = found.setdefault(row.method, {}).setdefault(str(entry["path"]), {})
            for quantity in ("variance_ratio", "mean_error", "plain_error"):
                at.setdefault(quantity, []).append(float(entry.get(quantity, math.nan)))
    if not found:
        return []
    ratio = _measured(found, styles, "variance_ratio", "Propagated / sampled variance (1 = exact)", 1.0)
    error = _measured(found, styles, "mean_error", "Error of the mean (standard deviations), lower is better", None)
    return [drawing for drawing in (ratio, error) if drawing is not None]


def _measured(found: Fidelity, styles: dict[str, Style], name: str, label: str, exact: float | None) -> Drawing | None:
    paths = list(dict.fromkeys(path for at in found.values() for path in at))
    estimates = {m: {p: estimate(at[p][name]) for p in paths if p in at} for m, at in found.items()}
    means = [e.mean for at in estimates.values() for e in at.values() if 0 < e.mean < math.inf]
    if not means:
        return None
    fig, axes = _list_of(paths)
    if exact is not None:
        log_axis(axes.xaxis, [*means, exact * 0.8, exact * 1.25])
        axes.axvline(exact, color=MUTED, lw=0.9, ls=(0, (3, 2)), zorder=1)
    else:
        plain = {p: estimate(next(at[p] for at in found.values() if p in at)["plain_error"]) for p in paths}
        xs = [plain[p].mean for p in paths]
        axes.plot(xs, range(len(paths)), "|", ms=8, mew=1.6, color=MUTED, zorder=2, label="plain network")
        axes.set_xlim(0, 1.08 * max([x for x in xs if math.isfinite(x)] + means))
    for method, offset in zip(estimates, _offsets(len(estimates)), strict=True):
        for y, path in enumerate(paths):
            e = estimates[method].get(path)
            if e is not None:
                sem = 0 if math.isnan(e.sem) else e.sem
                look = {"color": styles[method].colour, "ms": 4.6, "mec": SURFACE, "mew": 0.5, "elinewidth": 1}
                axes.errorbar(e.mean, y + offset, xerr=sem, fmt=styles[method].marker, zorder=3, **look)
    axes.set_xlabel(label, loc="right")
    _legend(fig, list(estimates), styles, axes)
    alt = f"{label}, per module: " + "; ".join(_range(m, at) for m, at in estimates.items())
    cells = tuple(
        (path, m, e.mean, e.sem, estimate(found[m][path]["plain_error"]).mean, e.count)
        for m, at in estimates.items()
        for path, e in at.items()
    )
    header = ("path", "method", name, f"{name}_sem", "plain_error", "seeds")
    title = "Fidelity of the variance" if exact is not None else "Fidelity of the mean"
    return Drawing(f"fidelity-{name.replace('_', '-')}", title, alt, fig, ((alt, fig),), header, cells)


def _range(method: str, at: dict[str, Any]) -> str:
    means = [e.mean for e in at.values()]
    return f"{method} from {min(means):.2g} to {max(means):.2g}"


def _offsets(count: int) -> list[float]:
    """Where in a line of height 1 the methods go, so that they do not cover each other."""
    return [0.36 * (i - (count - 1) / 2) / max(1, count - 1) for i in range(count)]


def _list_of(paths: Sequence[str]) -> tuple[Any, Any]:
    """Axes with one line per path, the first on top. A long list gets thin lines, and names for some."""
    line = min(0.2, max(0.07, 9 / len(paths)))
    every = math.ceil(0.15 / line)
    fig = figure(3.9, 1.0 + max(3, len(paths)) * line)
    axes = fig.subplots()
    axes.set_ylim(len(paths) - 0.4, -0.6)
    axes.set_yticks(range(0, len(paths), every), [_short(path) for path in paths[::every]], fontsize=7.5, color=INK)
    axes.tick_params(axis="y", length=0)
    return fig, axes


def _short(path: str) -> str:
    """The end of a path tells modules apart."""
    return path if len(path) <= _LONGEST else f"…{path[1 - _LONGEST :]}"


def _legend(fig: Any, methods: Sequence[str], styles: dict[str, Style], axes: Any = None) -> None:
    handles = list(axes.get_legend_handles_labels()[0]) if axes is not None else []
    proxy = fig.axes[0].plot
    for method in methods:
        style = styles[method]
        handles += proxy([], [], style.marker, color=style.colour, ms=5, mec=SURFACE, mew=0.5, label=method)
    fig.legend(handles=handles, loc="outside lower center", ncols=4, handletextpad=0.3, columnspacing=1.4)
