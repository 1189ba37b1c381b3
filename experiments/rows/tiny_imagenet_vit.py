"""100 classes of Tiny-ImageNet with a small ViT from scratch: stands in for CIFAR-100 with ViT-B."""

from __future__ import annotations

from dataclasses import replace

from experiments.augment import Augment
from experiments.data.imagenet import tiny_imagenet
from experiments.experiment import Experiment
from experiments.recipes import Recipe, Schedule
from experiments.rows.cifar10_vit import IVON
from experiments.rows.starting_points import centred, splits, vit

PLATEAU = Recipe(
    model={
        "channels": 3,
        "side": 64,
        "classes": 100,
        "patch": 8,
        "width": 192,
        "depth": 4,
        "heads": 3,
        "position": 0.02,
    },
    epochs=100,
    batch=128,
    ivon=IVON,
    schedule=Schedule(warmup=0.05, plateau=0.5),  # what was best for CIFAR-10
    augment=Augment(pad=8, flip=True),
)
CANDIDATES = {"plateau": PLATEAU, "plateau, colour": replace(PLATEAU, augment=Augment(pad=8, flip=True, jitter=0.3))}

TINY_IMAGENET_VIT = Experiment(
    name="tiny-imagenet-vit",
    title="Tiny-ImageNet-100 (small ViT)",
    about="A ViT of 1.9 million weights trained from scratch on 31,500 images of 100 classes; 3,500 are held out.",
    paper="CIFAR-100 (ViT-Base)",
    stand_in=True,
    splits=splits(tiny_imagenet, held_out=3500),
    model=vit,
    recipe=PLATEAU,
    prepare=centred,
    side_by_side=5,
    candidates=CANDIDATES,
)
