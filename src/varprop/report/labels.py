"""Names beside points, placed so that they cover neither points nor each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from varprop.report.style import settle

Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in points

_ANGLES = np.radians([0, 180, 90, 270, *range(20, 360, 20)])
_RADII = np.array([7, 11, 16, 22, 29, 37, 46])


def place(
    axes: Any, texts: Sequence[str], points: Sequence[tuple[float, float]], avoid: Callable[[], list[Box]], **look: Any
) -> list[Box]:
    """Write each text beside its point and return where. ``avoid`` gives boxes to stay clear of, once all is laid out.

    Each label takes the spot that covers least, given all others; then again, now that the others are known.
    """
    settle(axes.figure)  # from here on the axes keep their size
    scale, obstacles = 72 / axes.figure.dpi, avoid()
    anchors = axes.transData.transform(points) * scale
    frame = axes.get_window_extent()
    inside = (frame.x0 * scale + 3, frame.y0 * scale + 2, frame.x1 * scale, frame.y1 * scale)
    sizes = [_size(axes, text, scale, **look) for text in texts]
    spots = [_spots(anchor, size) for anchor, size in zip(anchors, sizes, strict=True)]
    chosen: dict[int, Box] = {}
    for _ in range(3):
        for i, boxes in enumerate(spots):
            others = [box for j, box in chosen.items() if j != i]
            cost = _cost(boxes, np.array([*others, *obstacles]).reshape(-1, 4), np.array([inside]))
            x0, y0, x1, y1 = boxes[int(cost.argmin())]
            chosen[i] = float(x0), float(y0), float(x1), float(y1)
    for i, text in enumerate(texts):
        _write(axes, text, anchors[i], chosen[i], look)
    return [chosen[i] for i in range(len(texts))]


def _size(axes: Any, text: str, scale: float, **look: Any) -> tuple[float, float]:
    probe = axes.figure.text(0, 0, text, **look)
    extent = probe.get_window_extent()
    probe.remove()
    return extent.width * scale, extent.height * scale


def _spots(anchor: np.ndarray, size: tuple[float, float]) -> np.ndarray:
    """Boxes whose nearest edge or corner lies at some radius and angle from the point, near ones first."""
    radius, angle = (grid.ravel() for grid in np.meshgrid(_RADII, _ANGLES, indexing="ij"))
    x = anchor[0] + radius * np.cos(angle) + (np.cos(angle) - 1) / 2 * size[0]
    y = anchor[1] + radius * np.sin(angle) + (np.sin(angle) - 1) / 2 * size[1]
    return np.stack([x, y, x + size[0], y + size[1]], axis=1)


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The area that each box in ``a`` shares with each in ``b``."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    return (high - low).clip(0).prod(-1)


def _cost(boxes: np.ndarray, taken: np.ndarray, inside: np.ndarray) -> np.ndarray:
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    wide = boxes + np.array([-2, -1, 2, 1])  # some air around the words
    radius = np.repeat(_RADII, len(_ANGLES))
    return 5 * overlap(wide, taken).sum(1) + 10 * (area - overlap(boxes, inside)[:, 0]) + 2 * radius


def _write(axes: Any, text: str, anchor: np.ndarray, box: Box, look: dict[str, Any]) -> None:
    near = (min(max(anchor[0], box[0]), box[2]), min(max(anchor[1], box[1]), box[3]))
    far = math.dist(near, anchor) > 13
    centre = ((box[0] + box[2]) / 2 - anchor[0], (box[1] + box[3]) / 2 - anchor[1])
    axes.annotate(
        text,
        axes.transData.inverted().transform(anchor * axes.figure.dpi / 72),
        xytext=centre,
        textcoords="offset points",
        ha="center",
        va="center",
        # A label far from its point is led back to it.
        arrowprops={"arrowstyle": "-", "lw": 0.6, "color": look.get("color", "gray"), "shrinkB": 4} if far else None,
        annotation_clip=False,
        **look,
    )
