"""The experiments, one file each. A new one is a value of ``Experiment`` and a line here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from experiments.experiment import Experiment
from experiments.rows.adamw import CIFAR10_VIT_ADAMW, SST2_MINILM_ADAMW, TINY_IMAGENET_VIT_ADAMW
from experiments.rows.cifar10_vit import CIFAR10_VIT
from experiments.rows.cifar100_vit import CIFAR100_VIT
from experiments.rows.daquar_fusion import DAQUAR_MULTIWAY, DAQUAR_SINGLE_STREAM
from experiments.rows.imagenet_resnet50 import IMAGENET_RESNET50
from experiments.rows.imagenet_sample_resnet50 import (
    IMAGENET_SAMPLE_RESNET50,
    IMAGENET_SAMPLE_RESNET50_ISOTROPIC,
)
from experiments.rows.nlvr2_beit3 import NLVR2_BEIT3
from experiments.rows.nlvr_multiway import NLVR_MULTIWAY
from experiments.rows.small_images import (
    DIGITS_CNN,
    DIGITS_CNN_ADAMW,
    FASHION_MNIST,
    FASHION_MNIST_CNN_ADAMW,
    GARMENTS_CNN,
    GARMENTS_CNN_ADAMW,
    OBJECTS_VIT,
)
from experiments.rows.sst2_minilm import SST2_MINILM
from experiments.rows.tiny_imagenet_vit import TINY_IMAGENET_VIT
from experiments.rows.vqav2_rows import VQAV2_BEIT3, VQAV2_VILT
from varprop.errors import InputError

ROWS: Mapping[str, Experiment] = MappingProxyType(
    {
        each.name: each
        for each in (
            CIFAR10_VIT,
            CIFAR100_VIT,
            IMAGENET_RESNET50,
            VQAV2_BEIT3,
            NLVR2_BEIT3,
            VQAV2_VILT,
            TINY_IMAGENET_VIT,
            IMAGENET_SAMPLE_RESNET50,
            DAQUAR_MULTIWAY,
            NLVR_MULTIWAY,
            DAQUAR_SINGLE_STREAM,
            SST2_MINILM,
            FASHION_MNIST,
            GARMENTS_CNN,
            DIGITS_CNN,
            OBJECTS_VIT,
            CIFAR10_VIT_ADAMW,
            TINY_IMAGENET_VIT_ADAMW,
            SST2_MINILM_ADAMW,
            FASHION_MNIST_CNN_ADAMW,
            GARMENTS_CNN_ADAMW,
            DIGITS_CNN_ADAMW,
            IMAGENET_SAMPLE_RESNET50_ISOTROPIC,
        )
    }
)


def row_named(name: str) -> Experiment:
    if name not in ROWS:
        near = difflib.get_close_matches(name, ROWS, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"there is no row {name!r}{meant}; there are {', '.join(ROWS)}")
    return ROWS[name]
