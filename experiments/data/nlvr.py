"""NLVR, the predecessor of NLVR2: statements about three boxes of coloured shapes, with the votes of annotators."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.data.text_files import find, read_json_lines
from experiments.exceptions import DataError

PARTS = ("dev", "test", "hidden")
FILES = tuple(f"{part}.json.gz" for part in PARTS)
BOXES, MOST = 3, 8
"""Boxes of a scene, and shapes in a box at most."""
SIZES, SHAPES, COLOURS = (10, 20, 30), ("triangle", "circle", "square"), ("yellow", "black", "#0099ff")
SIDE = 100
FEATURES = 2 + len(SIZES) + len(SHAPES) + len(COLOURS) + BOXES + 4 + 1
COLOUR, BOX, TOUCHING = slice(8, 11), slice(11, 14), slice(14, 18)
"""Among the features."""
ORDERS = tuple(itertools.permutations(range(BOXES)))
COLOUR_WORDS = ("yellow", "black", "blue")
"""As statements have them."""


@dataclass(frozen=True)
class Scenes:
    """Statements; the three boxes of each; the share of the annotators who say it is true; which sentence it has."""

    texts: list[str]
    boxes: list[list[list[dict[str, Any]]]]
    truth: Tensor
    groups: list[str]

    def __add__(self, other: Scenes) -> Scenes:
        truth = torch.cat([self.truth, other.truth])
        return Scenes(self.texts + other.texts, self.boxes + other.boxes, truth, self.groups + other.groups)

    def take(self, which: Tensor) -> Scenes:
        """Those at which it is true."""
        rows = which.nonzero()[:, 0].tolist()
        texts, groups = ([part[row] for row in rows] for part in (self.texts, self.groups))
        return Scenes(texts, [self.boxes[row] for row in rows], self.truth[which], groups)


def nlvr(folder: Path | None = None) -> dict[str, Scenes]:
    """989 statements of dev, 990 of test and 985 of hidden. Where votes are not published, the label counts.

    Some annotators called a statement nonsense: these votes are not counted.
    """
    place, _ = find("nlvr", folder, [FILES], "get the annotations of NLVR (github.com/lil-lab/nlvr), packed by gzip")
    return {part: _read(place / file, part) for part, file in zip(PARTS, FILES, strict=True)}


def _read(path: Path, part: str) -> Scenes:
    texts, boxes, truth, groups = [], [], [], []
    for where, line in read_json_lines(path):
        try:
            truth.append(_share(line, where))
            texts.append(str(line["sentence"]))
            groups.append(f"{part} {str(line['identifier']).partition('-')[0]}")
            boxes.append(_checked(line["structured_rep"], where))
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{where} is no statement of NLVR: {error!r}") from None
    if not texts:
        raise DataError(f"{path} holds no statements")
    return Scenes(texts, boxes, torch.tensor(truth), groups)


def _share(line: dict[str, Any], where: str) -> float:
    """Of true among the votes for true and for false."""
    votes = Counter(str(vote).lower() for vote in line.get("evals", {}).values())
    unknown = set(votes) - {"true", "false", "nonsense"}
    if unknown or str(line["label"]).lower() not in ("true", "false"):
        raise DataError(f"{where} has votes or a label other than true, false and nonsense")
    counted = votes["true"] + votes["false"]
    return votes["true"] / counted if counted else float(str(line["label"]).lower() == "true")


def _checked(boxes: Any, where: str) -> list[list[dict[str, Any]]]:
    if len(boxes) != BOXES or max(map(len, boxes)) > MOST:
        counts = ", ".join(str(len(box)) for box in boxes)
        raise DataError(f"{where} has boxes of {counts} shapes: there should be {BOXES} of at most {MOST}")
    for shape in itertools.chain(*boxes):
        if shape["type"] not in SHAPES or shape["color"].lower() not in COLOURS or shape["size"] not in SIZES:
            raise DataError(f"{where} has a shape of unknown kind, size or colour: {shape}")
    return boxes


def shape_tokens(scenes: Sequence[list[list[dict[str, Any]]]]) -> tuple[Tensor, Tensor]:
    """Features [N, 24, FEATURES] of the shapes, and where there is one [N, 24].

    Place, size, kind, colour, box, which sides of the box it touches, and whether it is the highest there: what a
    detector would find in the drawing.
    """
    tokens, present = torch.zeros(len(scenes), BOXES, MOST, FEATURES), torch.zeros(len(scenes), BOXES, MOST)
    for row, boxes in enumerate(scenes):
        for box, shapes in enumerate(boxes):
            if shapes:
                tokens[row, box, : len(shapes)] = torch.tensor([_features(shape, box, shapes) for shape in shapes])
                present[row, box, : len(shapes)] = 1
    return tokens.flatten(1, 2), present.flatten(1, 2)


def rearranged(
    tokens: Tensor, present: Tensor, boxes: Sequence[int], colours: Sequence[int] = (0, 1, 2)
) -> tuple[Tensor, Tensor]:
    """The same shapes with the boxes in this order, and each colour replaced by that of another number."""
    divided, there = (x.unflatten(1, (BOXES, MOST)) for x in (tokens, present))
    moved = divided[:, list(boxes)]
    moved[..., BOX] = 0
    for box in range(BOXES):
        moved[:, box, :, BOX.start + box] = there[:, boxes[box]]
    moved[..., [COLOUR.start + new for new in colours]] = divided[:, list(boxes)][..., COLOUR]
    return moved.flatten(1, 2), there[:, list(boxes)].flatten(1, 2)


def recoloured(texts: Sequence[str], colours: Sequence[int]) -> list[str]:
    """Each word for a colour replaced by that of another number."""
    words = {each: COLOUR_WORDS[new] for each, new in zip(COLOUR_WORDS, colours, strict=True)}
    return [re.sub("|".join(words), lambda found: words[found[0].lower()], text, flags=re.I) for text in texts]


def _features(shape: dict[str, Any], box: int, neighbours: Sequence[dict[str, Any]]) -> list[float]:
    x, y, size = shape["x_loc"], shape["y_loc"], shape["size"]
    chosen = (
        (size, SIZES),
        (shape["type"], SHAPES),
        (shape["color"].lower(), COLOURS),
        (box, range(BOXES)),
    )
    kinds = [float(value == each) for value, known in chosen for each in known]
    touching = [x <= 0, y <= 0, x + size >= SIDE, y + size >= SIDE]
    highest = y == min(each["y_loc"] for each in neighbours)
    return [x / SIDE, y / SIDE, *kinds, *map(float, touching), float(highest)]
