"""Tiny-ImageNet as published or packed, and a packed sample of ImageNet's validation images."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from experiments.data.examples import Examples, ImageSet, check_labels
from experiments.data.image_files import centre_crops, decode, image_folder
from experiments.data.packs import one_each
from experiments.data.text_files import find, read_json
from experiments.exceptions import DataError

PACKS = ("train_1.npz", "train_2.npz", "val.npz", "classes.json")
ANNOTATIONS = "val/val_annotations.txt"
OFFICIAL = ("wnids.txt", ANNOTATIONS)
SAMPLE = "imagenet_val1000.npz"
_SIDE = 64


def tiny_imagenet(folder: Path | None = None) -> ImageSet:
    """Images of 64×64 in 200 classes (as published) or 100 (packed); the validation images are the test set.

    Classes are numbered in the order of their WordNet ids; grey images become RGB.
    """
    remedy = "get and unpack tiny-imagenet-200.zip (from cs231n.stanford.edu)"
    others = ["tinyimagenet100", "tiny-imagenet-200"]
    place, files = find("tiny-imagenet", folder, [OFFICIAL, PACKS], remedy, also=others)
    return _packed(place) if files == PACKS else _official(place)


def imagenet_sample(folder: Path | None = None) -> Examples:
    """1,000 validation images of ILSVRC2012: short side 256, the middle 224×224; labels 0 … 999 in the usual order."""
    remedy = "this pack is made, not published (for the whole validation set use image_folder); copy it"
    place, _ = find("imagenet-sample", folder, [[SAMPLE]], remedy)
    encoded, labels = one_each(place / SAMPLE)
    check_labels(labels, 1000, str(place / SAMPLE), "ImageNet-1k")
    return Examples(centre_crops(encoded, str(place / SAMPLE)), labels)


def _packed(place: Path) -> ImageSet:
    classes = _class_list(place / PACKS[-1])
    *train, test = (_pack(place / name, len(classes)) for name in PACKS[:-1])
    images, labels = (torch.cat(column) for column in zip(*train, strict=True))
    return ImageSet(Examples(images, labels), Examples(*test), classes)


def _pack(path: Path, classes: int) -> tuple[Tensor, Tensor]:
    encoded, labels = one_each(path)
    check_labels(labels, classes, str(path), f"the Tiny-ImageNet of {PACKS[-1]}")
    return decode(encoded, (_SIDE, _SIDE), pack=str(path)), labels


def _class_list(path: Path) -> tuple[str, ...]:
    entries = read_json(path)
    try:
        return tuple(_short(entry["name"]) for entry in entries)
    except (KeyError, TypeError, AttributeError):
        raise DataError(f'{path} is not a JSON list of {{"wnid": …, "name": …}}') from None


def _official(place: Path) -> ImageSet:
    train = image_folder(place / "train")
    test = _annotated(place, train.classes)
    words = place / "words.txt"
    names = dict(line.split("\t", 1) for line in words.read_text().splitlines()) if words.is_file() else {}
    classes = tuple(_short(names.get(wnid, wnid)) for wnid in train.classes)
    return ImageSet(Examples(decode(train.paths, (_SIDE, _SIDE)), train.labels), test, classes)


def _annotated(place: Path, classes: tuple[str, ...]) -> Examples:
    """The validation images: a line for each, with the file, its WordNet id and a box."""
    lines = [line.split("\t") for line in (place / ANNOTATIONS).read_text().splitlines()]
    wrong = next((i for i, line in enumerate(lines, 1) if len(line) < 2 or line[1] not in classes), None)
    if wrong is not None or not lines:
        where = f"line {wrong} of {place / ANNOTATIONS}" if lines else str(place / ANNOTATIONS)
        raise DataError(f"{where} names no image and one of the classes in train: unpack tiny-imagenet-200.zip again")
    paths = [str(place / "val" / "images" / line[0]) for line in lines]
    return Examples(decode(paths, (_SIDE, _SIDE)), torch.tensor([classes.index(line[1]) for line in lines]))


def _short(name: str) -> str:
    """The first of several names."""
    return name.split(",")[0].strip()
