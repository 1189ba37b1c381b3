"""The experiments, one file each. A new one is a value of ``Experiment`` and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from varprop.experiments.experiment import Experiment
from varprop.experiments.rows.cifar10_vit import CIFAR10_VIT
from varprop.experiments.rows.cifar100_vit import CIFAR100_VIT
from varprop.experiments.rows.digits import DIGITS
from varprop.experiments.rows.fashion_mnist import FASHION_MNIST
from varprop.experiments.rows.imagenet_resnet50 import IMAGENET_RESNET50
from varprop.experiments.rows.imagenet_sample_resnet50 import IMAGENET_SAMPLE_RESNET50
from varprop.experiments.rows.sst2_minilm import SST2_MINILM
from varprop.experiments.rows.tiny_imagenet_vit import TINY_IMAGENET_VIT

ROWS: Mapping[str, Experiment] = MappingProxyType(
    {
        each.name: each
        for each in (
            CIFAR10_VIT,
            CIFAR100_VIT,
            IMAGENET_RESNET50,
            TINY_IMAGENET_VIT,
            IMAGENET_SAMPLE_RESNET50,
            SST2_MINILM,
            DIGITS,
            FASHION_MNIST,
        )
    }
)
