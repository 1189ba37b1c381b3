"""Learned scales of a transformer, block by block: attention, feed-forward, and their geometric mean."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from varprop.evaluation.rows import Row
from varprop.report.figures import Drawing, log_axis
from varprop.report.style import INK, MUTED, PALETTE, figure

ATTENTION, FEED_FORWARD, BOTH = "attention", "FFN", "geometric mean"
PARTS = (ATTENTION, FEED_FORWARD, BOTH)
_LOOKS = {ATTENTION: ("cvp", "o", "-"), FEED_FORWARD: ("mc2", "s", "-"), BOTH: ("mean", "D", (0, (4, 2)))}
_OUTPUT = "(output)"

# blocks.0.norm1, vit.layers.0.mlp.activation_fn, encoder_layer_0.ln_1: container, number, what is in the block.
_BLOCK = re.compile(r"(?P<container>.*?)(?:^|[._])(?P<number>\d+)\.(?P<rest>.+)")
# The norm in front of attention, or behind it where norms come last. What else has a scale in a block is feed-forward.
_NAMES = "norm_?1|ln_?1|layer_?norm_?1|layernorm_before|input_layernorm|sa_layer_norm|self_attn_layer_norm"
_ATTENTION = re.compile(rf"(?:.*[._])?(?:{_NAMES}|attention\.output\.layernorm)(?:#\d+)?", re.IGNORECASE)

Places = dict[str, dict[str, list[float]]]
"""Place on the axis (E, 0, 1, …, P, L) and part: the scales there."""


def places(scales: Mapping[str, float]) -> Places | None:
    """Scales by place: E before the blocks, each block, P behind them (last norm, pooler), L for the logits.

    None for a network that is no stack of transformer blocks.
    """
    found = {path: _BLOCK.fullmatch(path) for path in scales}
    blocks = {match["container"]: None for match in found.values() if match and _ATTENTION.fullmatch(match["rest"])}
    if len(blocks) != 1:
        return None
    (container,) = blocks
    result: Places = {}
    for path, alpha in scales.items():
        match = found[path]
        if match and match["container"] == container:
            part = ATTENTION if _ATTENTION.fullmatch(match["rest"]) else FEED_FORWARD
            result.setdefault(match["number"], {}).setdefault(part, []).append(alpha)
        else:
            inside = any(place.isdigit() for place in result)
            place = "L" if path == _OUTPUT else "P" if inside else "E"
            result.setdefault(place, {}).setdefault(BOTH, []).append(alpha)
    return result


def per_block(scales: Mapping[str, float]) -> dict[str, dict[str, float]] | None:
    """α by place and part, geometric means where a part has several scales; of both parts that of attention and FFN."""
    found = places(scales)
    if found is None:
        return None
    result = {}
    for place, parts in found.items():
        means = {part: geometric(values) for part, values in parts.items()}
        result[place] = means if BOTH in means else means | {BOTH: geometric(means.values())}
    return result


def geometric(values: Iterable[float]) -> float:
    """NaN if any is not positive."""
    known = list(values)
    return math.exp(sum(map(math.log, known)) / len(known)) if min(known) > 0 else math.nan


def block_scales(rows: Sequence[Row], methods: Sequence[str]) -> Drawing | None:
    """Learned α by block, a panel per method; the line is the geometric mean over seeds.

    The band is one standard deviation of log α. None where no row is of a transformer.
    """
    found = {m: [b for row in rows if row.method == m and row.scales and (b := per_block(row.scales))] for m in methods}
    found = {method: seeds for method, seeds in found.items() if seeds}
    if not found:
        return None
    whole = figure(3.9 * len(found), 2.9)
    grid = whole.subplots(1, len(found), squeeze=False, sharey=True)[0]
    values = [a for seeds in found.values() for b in seeds for parts in b.values() for a in parts.values() if a > 0]
    panels, cells = [], []
    for axes, (method, seeds) in zip(grid, found.items(), strict=True):
        single = figure(3.9, 2.9)
        lines = _lines(method, seeds)
        for at in (axes, single.subplots()):
            _draw(at, method, lines, values)
        panels.append((f"Learned variance scale of {method} by block: {_spoken(lines)}", single))
        cells += lines
    for fig in (whole, *(single for _, single in panels)):
        fig.legend(*fig.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    alt = f"Learned variance scales by transformer block: {', '.join(found)}"
    header = ("method", "place", "part", "alpha", "low", "high", "seeds")
    return Drawing("blocks", "Learned variance scales by block", alt, whole, tuple(panels), header, tuple(cells))


def _lines(method: str, seeds: Sequence[dict[str, dict[str, float]]]) -> list[tuple[Any, ...]]:
    """Method, place, part, geometric mean over seeds, band, number of seeds."""
    lines = []
    for place in seeds[0]:
        for part in PARTS:
            logs = np.log([b[place][part] for b in seeds if part in b.get(place, {})])
            if len(logs):
                mean, spread = logs.mean(), logs.std(ddof=1) if len(logs) > 1 else 0.0
                band = (float(np.exp(mean + side * spread)) for side in (0, -1, 1))
                lines.append((method, place, part, *band, len(logs)))
    return lines


def _draw(axes: Any, method: str, lines: Sequence[tuple[Any, ...]], values: Sequence[float]) -> None:
    order = list(dict.fromkeys(line[1] for line in lines))
    log_axis(axes.yaxis, [*values, 0.8, 1.25])
    axes.axhline(1, color=MUTED, lw=0.9, ls=(0, (3, 2)), zorder=1)
    for part in PARTS:
        role, marker, dashes = _LOOKS[part]
        chosen = [line for line in lines if line[2] == part]
        inside = [line for line in chosen if line[1].isdigit()]
        # Lines join the blocks; what is before and behind them stands alone.
        for points, style in ((inside, dashes), *(([line], "") for line in chosen if line not in inside)):
            x = [order.index(line[1]) for line in points]
            mean, low, high = (np.array([line[i] for line in points]) for i in (3, 4, 5))
            colour, label = PALETTE[role][0], part if points is inside else None
            axes.plot(x, mean, marker=marker, ls=style or "none", ms=4, lw=1.4, color=colour, label=label, zorder=3)
            if points is inside:
                axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0, zorder=2)
            else:
                axes.vlines(x, low, high, color=colour, lw=3, alpha=0.25, zorder=2)
    every = math.ceil(len(order) / 20)
    shown = [i for i, place in enumerate(order) if not place.isdigit() or int(place) % every == 0]
    axes.set_xticks(shown, [order[i] for i in shown], color=INK)
    axes.set(title=method, xlabel="Block (P: last norm and pooler, L: logits)", ylabel="Variance scale α")


def _spoken(lines: Sequence[tuple[Any, ...]]) -> str:
    return ", ".join(f"{place} {alpha:.2g}" for _, place, part, alpha, *_ in lines if part == BOTH)
