"""Scenes drawn at random as NLVR's are, and what can be said of many of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from experiments.data.nlvr import BOXES, COLOUR, COLOURS, MOST, SHAPES, SIDE, SIZES, TOUCHING

TALLEST, SCATTERED = 4, 7
"""Blocks of a tower and shapes in a box at most, as in NLVR."""


def draw_scene(rng: Random, towers: bool) -> list[list[dict[str, Any]]]:
    """Three boxes, each with a tower of equal blocks or with scattered shapes of all sizes and kinds."""
    return [_tower(rng) if towers else _scattered(rng) for _ in range(BOXES)]


def _tower(rng: Random) -> list[dict[str, Any]]:
    """From the base up."""
    return [_shape(rng, 40, 80 - 21 * level, 20, "square") for level in range(rng.randint(1, TALLEST))]


def _scattered(rng: Random) -> list[dict[str, Any]]:
    """None closer than one pixel to another. What would stick out to the right or below is moved to the wall."""
    found: list[dict[str, Any]] = []
    wanted = rng.randint(1, SCATTERED)
    while len(found) < wanted:
        size = rng.choice(SIZES)
        x, y = (min(rng.randrange(SIDE), SIDE - size) for _ in range(2))
        shape = _shape(rng, x, y, size, rng.choice(SHAPES))
        if all(_apart(shape, other) for other in found):
            found.append(shape)
    return found


def _apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = ((a, b, place) for a, b in ((one, other), (other, one)) for place in ("x_loc", "y_loc"))
    return any(a[place] + a["size"] < b[place] for a, b, place in pairs)


def _shape(rng: Random, x: int, y: int, size: int, kind: str) -> dict[str, Any]:
    return {"x_loc": x, "y_loc": y, "size": size, "type": kind, "color": rng.choice(COLOURS)}


class SceneFacts:
    """What can be said of many scenes: of shapes [N, 3, 8], of boxes [N, 3]."""

    def __init__(self, tokens: Tensor, present: Tensor, towers: bool) -> None:
        features = tokens.unflatten(1, (BOXES, MOST)).bool()
        self.towers = towers
        self.there = present.unflatten(1, (BOXES, MOST)).bool()
        parts = slice(2, 5), slice(5, 8), COLOUR, TOUCHING
        self.size, self.kind, self.colour, self.sides = (features[..., part].unbind(-1) for part in parts)
        self.height = self.there.sum(-1)
        level = torch.arange(MOST)
        self.base, self.top = self.there & (level == 0), self.there & (level == self.height[..., None] - 1)
        self.second = self.there & (level == 1)
        self.middle = self.there & ~self.base & ~self.top
        left, top, right, bottom = self.sides
        self.wall, self.corner = left | top | right | bottom, (left | right) & (top | bottom)
        self.colours = torch.stack([each.any(-1) for each in self.colour], -1).sum(-1)
        """Different ones in a box."""

    def on(self, upper: Tensor, lower: Tensor) -> Tensor:
        """Shapes of one set directly on one of another."""
        return upper & torch.cat([torch.zeros_like(lower[..., :1]), lower[..., :-1]], -1)

    def only(self, colours: Sequence[int]) -> Tensor:
        """Boxes with all of these colours and no other."""
        has = [self.colour[c].any(-1) == (c in colours) for c in range(len(COLOURS))]
        return torch.stack(has).all(0)
