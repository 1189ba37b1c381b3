"""Image data sets for demos and experiments, read from their public formats; nothing is downloaded or unpickled."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType

from varprop.data.cifar import cifar10
from varprop.data.digits import digits
from varprop.data.idx import fashion_mnist
from varprop.data.images import Images, Split
from varprop.errors import DataError

__all__ = ["DATASETS", "Images", "Split", "cifar10", "digits", "fashion_mnist", "load"]

DATASETS: Mapping[str, Callable[[str | os.PathLike[str] | None], Images]] = MappingProxyType(
    {"digits": lambda _: digits(), "fashion-mnist": fashion_mnist, "cifar10": cifar10}
)


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Images:
    """A data set by name, from ``folder`` or wherever it usually lies."""
    if name not in DATASETS:
        raise DataError(f"there is no data set {name!r}, only {', '.join(DATASETS)}")
    return DATASETS[name](folder)
