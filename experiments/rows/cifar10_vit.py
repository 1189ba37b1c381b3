"""CIFAR-10 with the "sub-tiny" ViT of 1.8 million weights, from scratch."""

from __future__ import annotations

from dataclasses import replace

from experiments.augment import Augment
from experiments.data.cifar import cifar10
from experiments.experiment import Experiment
from experiments.recipes import Recipe, Schedule
from experiments.rows.starting_points import centred, splits, vit

# The paper's. It says nothing of batch, schedule, pooling, start and augmentation: those are ours.
IVON = {"lr": 2.0, "ess": 3.5e6, "hess_init": 0.02, "beta2": 0.9999, "weight_decay": 1e-4, "clip_radius": 1e-3}
MODEL = {"channels": 3, "side": 32, "classes": 10, "patch": 4, "width": 192, "depth": 4, "heads": 3, "position": 0.02}

PLAIN = Recipe(
    model=MODEL,
    epochs=100,
    batch=128,
    ivon=IVON,
    schedule=Schedule(warmup=0.05),
    augment=Augment(pad=4, flip=True),
    gradient_clip=1.0,
)
PLATEAU = replace(PLAIN, schedule=Schedule(warmup=0.05, plateau=0.5))
STRONGER = Augment(pad=4, flip=True, jitter=0.3, erase=8)

CANDIDATES = {
    "plain": PLAIN,
    "plateau": PLATEAU,
    "plateau, strong positions": replace(PLATEAU, model={**MODEL, "position": 0.5}),
    "colour and erasing": replace(PLAIN, augment=STRONGER),
    "plateau, colour and erasing": replace(PLATEAU, augment=STRONGER),
}

CIFAR10_VIT = Experiment(
    name="cifar10-vit",
    title="CIFAR-10 (sub-tiny ViT)",
    about="A ViT of 1.8 million weights trained from scratch on 45,000 images of CIFAR-10; 5,000 are held out.",
    paper="CIFAR-10 (sub-tiny ViT)",
    splits=splits(cifar10, held_out=5000),
    model=vit,
    recipe=PLATEAU,
    prepare=centred,
    side_by_side=10,
    candidates=CANDIDATES,
)
