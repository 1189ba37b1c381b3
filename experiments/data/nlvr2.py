"""NLVR2: statements about two photos, true or false, in the official files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.data.text_files import find, read_json_lines
from experiments.exceptions import DataError

PARTS = ("train", "dev", "test1")
FILES = tuple(f"{part}.json" for part in PARTS)
REMEDY = "get data/*.json of github.com/lil-lab/nlvr/nlvr2 and its images, unpacked into images/"
TRUTH = ("False", "True")


class Statements(NamedTuple):
    """Statements, the files of the two images of each, and whether it is true of them [N]."""

    texts: list[str]
    paths: list[tuple[str, str]]
    labels: Tensor


class Nlvr2Set(NamedTuple):
    """The parts by their official names."""

    train: Statements
    dev: Statements
    test: Statements


def nlvr2(folder: Path | None = None) -> Nlvr2Set:
    """86,373, 6,982 and 6,967 statements.

    The images of ``train-10171-0-0`` are ``train-10171-0-img0.png`` and ``…-img1.png``, in
    ``images/train/<directory>``; those of other parts in ``images/dev`` and ``images/test1``.
    """
    place, _ = find("nlvr2", folder, [FILES], REMEDY, also=["NLVR2"])
    return Nlvr2Set(*(_stated(place, part) for part in PARTS))


def _stated(place: Path, part: str) -> Statements:
    path = place / f"{part}.json"
    texts, paths, labels = [], [], []
    for where, line in read_json_lines(path):
        lacking = [name for name in ("sentence", "identifier", "label") if name not in line]
        if lacking:
            raise DataError(f"{where} lacks {', '.join(lacking)}")
        if str(line["label"]) not in TRUTH:
            raise DataError(f"{where} has the label {line['label']!r} instead of True or False")
        texts.append(line["sentence"])
        paths.append(_pair(place, part, line, where))
        labels.append(TRUTH.index(str(line["label"])))
    if not texts:
        raise DataError(f"{path} holds no statements")
    return Statements(texts, paths, torch.tensor(labels))


def _pair(place: Path, part: str, line: dict[str, str], where: str) -> tuple[str, str]:
    stem = line["identifier"].rpartition("-")[0]
    folder = place / "images" / part / (str(line["directory"]) if "directory" in line else "")
    first, second = (folder / f"{stem}-img{side}.png" for side in (0, 1))
    missing = [file for file in (first, second) if not file.is_file()]
    if missing:
        there = f"{2 - len(missing)} of the 2 images"
        raise DataError(f"{where}, {line['identifier']}, has {there} it is about: there is no {missing[0]}")
    return str(first), str(second)
