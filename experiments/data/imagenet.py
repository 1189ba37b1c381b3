"""Tiny-ImageNet as published or packed, and a packed sample of ImageNet's validation images."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from experiments.data.archives import content
from experiments.data.checksums import verify
from experiments.data.decode import centre_crop, decode
from experiments.data.examples import check_labels
from experiments.data.images import Images, Split
from experiments.data.packs import one_each
from experiments.data.places import find
from varprop.errors import DataError

PACKS = ("train_1.npz", "train_2.npz", "val.npz", "classes.json")
ANNOTATIONS = "val/val_annotations.txt"
OFFICIAL = ("wnids.txt", ANNOTATIONS)
SAMPLE = "imagenet_val1000.npz"
_SIDE = 64


def tiny_imagenet(folder: str | os.PathLike[str] | None = None) -> Images:
    """Images of 64×64 in 200 classes (as published) or 100 (packed); the validation images are the test set.

    Classes are numbered in the order of their WordNet ids; grey images become RGB.
    """
    remedy = "get and unpack tiny-imagenet-200.zip (from cs231n.stanford.edu)"
    others = ["tinyimagenet100", "tiny-imagenet-200"]
    place, files = find("tiny-imagenet", folder, [OFFICIAL, PACKS], remedy, also=others)
    return _packed(place) if files == PACKS else _official(place)


def imagenet_sample(folder: str | os.PathLike[str] | None = None) -> Split:
    """1,000 validation images of ILSVRC2012: short side 256, the middle 224×224; labels 0 … 999 in the usual order."""
    remedy = "this pack is made, not published (for the whole validation set use image_folder); copy it"
    place, _ = find("imagenet-sample", folder, [[SAMPLE]], remedy)
    encoded, labels = one_each(place / SAMPLE)
    check_labels(labels, 1000, str(place / SAMPLE), "ImageNet-1k")
    return Split(decode(encoded, (224, 224), centre_crop(224, 256), str(place / SAMPLE)), labels)


def _packed(place: Path) -> Images:
    classes = _class_list(place / PACKS[-1])
    first, second, test = (_pack(place / name, len(classes)) for name in PACKS[:-1])
    train = Split(torch.cat([first.images, second.images]), torch.cat([first.labels, second.labels]))
    return Images("tiny-imagenet", train, test, classes)


def _pack(path: Path, classes: int) -> Split:
    encoded, labels = one_each(path)
    check_labels(labels, classes, str(path), f"the Tiny-ImageNet of {PACKS[-1]}")
    return Split(decode(encoded, (_SIDE, _SIDE), pack=str(path)), labels)


def _class_list(path: Path) -> tuple[str, ...]:
    data = content(path)
    try:
        return tuple(_short(entry["name"]) for entry in json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f'{path} is not a JSON list of {{"wnid": …, "name": …}}') from None


def _official(place: Path) -> Images:
    wnids = sorted(_lines(place / OFFICIAL[0]))
    if not wnids:
        raise DataError(f"{place / OFFICIAL[0]} lists no classes")
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    train: list[tuple[str, int]] = []
    for wnid, label in labels.items():
        images = sorted((place / "train" / wnid / "images").glob("*.JPEG"))
        if not images:
            raise DataError(
                f"{place / 'train' / wnid / 'images'} holds no .JPEG files: unpack tiny-imagenet-200.zip again"
            )
        train += [(f"train/{wnid}/images/{image.name}", label) for image in images]
    test = _annotated(place, labels)
    names = dict(line.partition("\t")[::2] for line in _lines(place / "words.txt"))
    classes = tuple(_short(names.get(wnid, wnid)) for wnid in wnids)
    return Images("tiny-imagenet", _files(place, train), _files(place, test), classes)


def _annotated(place: Path, labels: dict[str, int]) -> list[tuple[str, int]]:
    """The validation images: a line for each, with the file, its WordNet id and a box."""
    found = []
    for number, line in enumerate(_lines(place / ANNOTATIONS), 1):
        file, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in labels:
            raise DataError(f"line {number} of {place / ANNOTATIONS} has {wnid!r}, which is not in {OFFICIAL[0]}")
        found.append((f"val/images/{file}", labels[wnid]))
    if not found:
        raise DataError(f"{place / ANNOTATIONS} lists no images")
    return found


def _files(place: Path, images: list[tuple[str, int]]) -> Split:
    verify(place, [file for file, _ in images])
    paths = [str(place / file) for file, _ in images]
    return Split(decode(paths, (_SIDE, _SIDE)), torch.tensor([label for _, label in images], dtype=torch.int64))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    return [line.strip() for line in content(path).decode("utf-8", errors="replace").split("\n") if line.strip()]


def _short(name: str) -> str:
    """The first of several names."""
    return name.split(",")[0].strip()
