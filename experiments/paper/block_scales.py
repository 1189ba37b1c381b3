"""Learned scales of a transformer, block by block: attention, feed-forward, and their geometric mean."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from varprop.evaluation.methods import method_of
from varprop.evaluation.results import Row
from varprop.report.figures import Drawing
from varprop.report.style import IDEAL, INK, PALETTE, figure, log_axis

ATTENTION, FEED_FORWARD, BOTH = "attention", "FFN", "geometric mean"
PARTS = (ATTENTION, FEED_FORWARD, BOTH)
_LOOKS = {ATTENTION: ("other1", "o", "-"), FEED_FORWARD: ("other2", "s", "-"), BOTH: ("other4", "D", (0, (4, 2)))}
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


def block_scales(experiment: str, rows: Sequence[Row], methods: Sequence[str]) -> Drawing | None:
    """Learned α by block, a panel per method; the line is the geometric mean over seeds.

    The band is one standard deviation of log α. None where no row is of a transformer.
    """
    found = [
        (row.method, place, part, math.log(alpha))
        for method in methods
        for row in rows
        if row.method == method and row.scales and (blocks := per_block(row.scales))
        for place, parts in blocks.items()
        for part, alpha in parts.items()
        if alpha > 0
    ]
    if not found:
        return None
    logs = pd.DataFrame(found, columns=["method", "place", "part", "log"]).groupby(
        ["method", "place", "part"], sort=False
    )
    mean, spread = logs["log"].mean(), logs["log"].std().fillna(0)
    data = np.exp(pd.DataFrame({"alpha": mean, "low": mean - spread, "high": mean + spread}))
    data = data.assign(seeds=logs["log"].count()).reset_index()
    shown = list(data["method"].unique())
    fig = figure(3.9 * len(shown), 2.9)
    for axes, method in zip(fig.subplots(1, len(shown), squeeze=False, sharey=True)[0], shown, strict=True):
        log_axis(axes.yaxis, [data["alpha"].min(), data["alpha"].max(), 0.8, 1.25])
        _draw(axes, data[data["method"] == method])
        axes.set(title=method_of(method).title, xlabel="Block (P: last norm and pooler, L: logits)")
        axes.set(ylabel="Variance scale α")
    fig.legend(*fig.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    both = data[data["part"] == BOTH]
    told = [
        f"{method_of(m).title} {place}: {alpha:.2g}" for m, place, alpha in both[["method", "place", "alpha"]].values
    ]
    alt = f"Learned variance scales by transformer block, {', '.join(told)}"
    return Drawing(experiment, "blocks", "Learned variance scales by block", alt, fig, data)


def _draw(axes: Axes, data: pd.DataFrame) -> None:
    order = list(data["place"].unique())
    axes.axhline(1, **IDEAL)
    for part in PARTS:
        role, marker, dashes = _LOOKS[part]
        chosen = data[data["part"] == part]
        inside = chosen["place"].str.isdigit()
        look: dict[str, Any] = {"marker": marker, "ms": 4, "color": PALETTE[role], "zorder": 3}
        # Lines join the blocks; what is before and behind them stands alone.
        blocks, ends = chosen[inside], chosen[~inside]
        x, at = ([order.index(place) for place in points["place"]] for points in (blocks, ends))
        axes.plot(x, blocks["alpha"], ls=dashes, lw=1.4, label=part, **look)
        axes.fill_between(x, blocks["low"], blocks["high"], color=PALETTE[role], alpha=0.15, lw=0, zorder=2)
        axes.plot(at, ends["alpha"], ls="none", **look)
        axes.vlines(at, ends["low"], ends["high"], color=PALETTE[role], lw=3, alpha=0.25, zorder=2)
    every = math.ceil(len(order) / 20)
    shown = [i for i, place in enumerate(order) if not place.isdigit() or int(place) % every == 0]
    axes.set_xticks(shown, [order[i] for i in shown], color=INK)
