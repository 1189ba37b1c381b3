"""The experiments: every value of ``Experiment`` in the modules that are listed here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from experiments.experiment import Experiment
from experiments.rows import (
    adamw,
    cifar10_vit,
    cifar100_vit,
    daquar_fusion,
    imagenet_resnet50,
    imagenet_sample_resnet50,
    nlvr2_beit3,
    nlvr_multiway,
    small_images,
    sst2_minilm,
    tiny_imagenet_vit,
    vqav2_rows,
)
from varprop.errors import InputError

OF_THE_PAPER = (cifar10_vit, cifar100_vit, imagenet_resnet50, vqav2_rows, nlvr2_beit3)
STAND_INS = (tiny_imagenet_vit, imagenet_sample_resnet50, daquar_fusion, nlvr_multiway)
OTHERS = (sst2_minilm, small_images, adamw)
ROWS: Mapping[str, Experiment] = MappingProxyType(
    {
        each.name: each
        for module in (*OF_THE_PAPER, *STAND_INS, *OTHERS)
        for each in vars(module).values()
        if isinstance(each, Experiment)
    }
)


def row_named(name: str) -> Experiment:
    if name not in ROWS:
        near = difflib.get_close_matches(name, ROWS, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"there is no row {name!r}{meant}; there are {', '.join(ROWS)}")
    return ROWS[name]
