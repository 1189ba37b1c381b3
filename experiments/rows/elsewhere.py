"""Data from elsewhere for the rows of images: other data sets of the same size, and changed test images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F

from experiments.data.corruptions import KINDS, STRENGTHS, corrupted
from experiments.data.idx import fashion_mnist, mnist
from experiments.data.imagenet import tiny_imagenet
from experiments.data.images import Images

COUNT = 2_000
"""Images of another data set at most."""
Reader = Callable[[Path | None], Images]


def _tiny_imagenet(folder: Path | None) -> Images:
    """In 32 × 32, as CIFAR-10 has it."""
    images = tiny_imagenet(folder).test.take(slice(COUNT))
    small = F.interpolate(images.images.float(), (32, 32), mode="bilinear", antialias=True)
    return Images(small.round().clamp(0, 255).to(torch.uint8), images.labels)


GARMENTS: Mapping[str, Reader] = {"Fashion-MNIST": lambda folder: fashion_mnist(folder).test.take(slice(COUNT))}
DIGITS: Mapping[str, Reader] = {"MNIST": lambda folder: mnist(folder).test.take(slice(COUNT))}
OBJECTS: Mapping[str, Reader] = {"Tiny-ImageNet": _tiny_imagenet}
_OUTSIDE = {"garments-cnn": DIGITS, "fashion-mnist": DIGITS, "digits-cnn": GARMENTS, "cifar10-vit": OBJECTS}
_OUTSIDE |= {"fashion-mnist-cnn": DIGITS}


def outside(row: str, folder: Path | None) -> dict[str, Images]:
    """Other data sets for a row, by name."""
    readers = _OUTSIDE.get(row.removesuffix("-adamw"), {})
    return {name: read(folder) for name, read in readers.items()}


def changed(images: Images, count: int) -> dict[tuple[str, int], Callable[[], Images]]:
    """The test images as they are, and the first of them in every kind and strength of damage."""
    whole: dict[tuple[str, int], Callable[[], Images]] = {("none", 0): lambda: images}
    if not count:
        return whole
    some = images.take(slice(count))
    return whole | {(k, s): functools.partial(corrupted, some, k, s) for k in KINDS for s in STRENGTHS}
