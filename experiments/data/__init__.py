"""Data sets for experiments, read from their public formats; nothing is downloaded or unpickled."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, overload

from experiments.data.cifar import cifar10, cifar100
from experiments.data.digits import digits
from experiments.data.examples import Examples, hold_out
from experiments.data.folders import Files, image_folder
from experiments.data.idx import fashion_mnist
from experiments.data.imagenet import imagenet_sample, tiny_imagenet
from experiments.data.images import Images, Split
from experiments.data.text import Sentences, Texts, Tokens, sst2
from varprop.errors import DataError

__all__ = [
    "DATASETS",
    "Examples",
    "Files",
    "Images",
    "Sentences",
    "Split",
    "Texts",
    "Tokens",
    "cifar10",
    "cifar100",
    "digits",
    "fashion_mnist",
    "hold_out",
    "image_folder",
    "imagenet_sample",
    "load",
    "sst2",
    "tiny_imagenet",
]

DATASETS: Mapping[str, Callable[[str | os.PathLike[str] | None], Images | Split | Texts]] = MappingProxyType(
    {
        "digits": lambda _: digits(),
        "fashion-mnist": fashion_mnist,
        "cifar10": cifar10,
        "cifar100": cifar100,
        "tiny-imagenet": tiny_imagenet,
        "imagenet-sample": imagenet_sample,
        "sst2": sst2,
    }
)


@overload
def load(
    name: Literal["digits", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet"],
    folder: str | os.PathLike[str] | None = None,
) -> Images: ...
@overload
def load(name: Literal["imagenet-sample"], folder: str | os.PathLike[str] | None = None) -> Split: ...
@overload
def load(name: Literal["sst2"], folder: str | os.PathLike[str] | None = None) -> Texts: ...
@overload
def load(name: str, folder: str | os.PathLike[str] | None = None) -> Any: ...


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Images | Split | Texts:
    """A data set by name, from ``folder`` or wherever it usually lies."""
    if name not in DATASETS:
        raise DataError(f"there is no data set {name!r}, only {', '.join(DATASETS)}")
    return DATASETS[name](folder)
