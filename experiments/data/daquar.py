"""DAQUAR: questions about photos of rooms, with an answer of one or several words from a list."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from PIL.Image import Resampling
from torch import Tensor

from experiments.data.examples import Scores
from experiments.data.image_files import decode
from experiments.data.packs import named_images
from experiments.data.text_files import find, read_table
from experiments.exceptions import DataError

FILES = ("images.npz", "train.csv", "eval.csv", "answers.txt")
COLUMNS = ("question", "answer", "image_id")
SIZE = (224, 288)
"""Height and width of all images: multiples of 32, and nearly the 3 : 4 of the photos."""
TESTED, HELD_OUT = 350, 150
"""Images."""


class Daquar(NamedTuple):
    """All questions, those of both published files; each about the image of that number."""

    questions: list[str]
    image: Tensor
    scores: Scores
    answers: tuple[str, ...]
    place: Path
    images: int


def daquar(folder: Path | None = None) -> Daquar:
    """12,468 questions about 1,449 images.

    Of an answer with k words, each word that is in the list scores 1/k. The published files share most images: to hold
    some out, divide by ``image``.
    """
    place, _ = find("daquar", folder, [FILES], "get DAQUAR with its images packed into images.npz")
    answers = tuple((place / FILES[3]).read_text().split("\n"))
    known = {name: row for row, name in enumerate(named_images(place / FILES[0])[1])}
    lines = [line for file in FILES[1:3] for line in _lines(place / file, known)]
    index = {answer: row for row, answer in enumerate(answers)}
    scores = [_scores(line["answer"], index) for line in lines]
    image = torch.tensor([known[line["image_id"]] for line in lines])
    return Daquar(
        [line["question"] for line in lines], image, Scores.of(scores, len(answers)), answers, place, len(known)
    )


def divide(images: int) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of the images to train on, to hold out, and to test: always the same."""
    order = torch.randperm(images, generator=torch.Generator().manual_seed(0))
    test, held_out, train = order.split([TESTED, HELD_OUT, images - TESTED - HELD_OUT])
    return train, held_out, test


def photos(place: Path) -> Tensor:
    """The images [N, 3, 224, 288], in the order of their numbers."""
    path = place / FILES[0]
    return decode(named_images(path)[0], SIZE, lambda image: image.resize(SIZE[::-1], Resampling.BILINEAR), str(path))


def _lines(path: Path, images: dict[str, int]) -> list[dict[str, str]]:
    lines = read_table(path)
    for number, line in enumerate(lines, 2):
        if not all(line.get(name) for name in COLUMNS):
            raise DataError(f"line {number} of {path} lacks one of {', '.join(COLUMNS)}")
        if line["image_id"] not in images:
            raise DataError(f"line {number} of {path} is about {line['image_id']!r}, which is not in {FILES[0]}")
    return lines


def _scores(answer: str, index: dict[str, int]) -> dict[int, float]:
    words = [word.strip() for word in answer.split(",")]
    return {index[word]: 1 / len(words) for word in words if word in index}
