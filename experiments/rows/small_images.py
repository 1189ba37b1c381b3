"""A small CNN or ViT on 10,000 images, with IVON and with AdamW: minutes on a CPU. Not in the paper."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from experiments.data.cifar import cifar10
from experiments.data.idx import fashion_mnist, mnist
from experiments.data.images import ImageSet
from experiments.data.labelled import hold_out
from experiments.experiment import Experiment, Sources, Splits
from experiments.recipes import AdamWRecipe, Recipe, Schedule
from experiments.rows.adamw import cnn, ordinary
from experiments.rows.scratch import centred, vit
from varprop.evaluation.methods import listed

METHODS = tuple(listed("mean,temperature,mc-16,streamlining,cvp"))
TRAINED, HELD_OUT, TESTED = 10_000, 2_000, 2_000
MODEL = {"channels": 1, "side": 28, "classes": 10, "width": 8, "hidden": 64}
RECIPE = Recipe(
    model=MODEL,
    epochs=10,
    batch=100,
    schedule=Schedule(warmup=0.2),
    ivon={"lr": 1.0, "ess": 1e5, "hess_init": 0.05, "beta2": 0.9995, "weight_decay": 1e-4, "clip_radius": 0.01},
)
ADAMW = AdamWRecipe(
    model=MODEL, epochs=10, batch=100, schedule=Schedule(warmup=0.2), adamw={"lr": 3e-3, "weight_decay": 0.05}
)


def splits(read: Callable[[Path | None], ImageSet]) -> Callable[[Sources, int], Splits]:
    """The same images for every seed."""

    @functools.lru_cache(maxsize=1)
    def load(folder: Path | None) -> Splits:
        images = read(folder)
        train, held_out = hold_out(images.train, HELD_OUT)
        return Splits(train.take(slice(TRAINED)), held_out, images.test.take(slice(TESTED)), images.classes)

    return lambda sources, _: load(sources.data)


def small(name: str, title: str, what: str, read: Callable[[Path | None], ImageSet]) -> Experiment:
    return Experiment(
        name=name,
        title=f"{title} (small CNN)",
        about=f"A CNN of 52,000 weights trained on 10,000 images of {what}; 2,000 are held out, 2,000 tested.",
        splits=splits(read),
        model=cnn,
        recipe=RECIPE,
        prepare=centred,
        methods=METHODS,
        side_by_side=10,
    )


GARMENTS_CNN = small("garments-cnn", "Fashion-MNIST", "garments", fashion_mnist)
DIGITS_CNN = small("digits-cnn", "MNIST", "digits", mnist)
OBJECTS_VIT = replace(
    small("objects-vit", "CIFAR-10", "objects", cifar10),
    title="CIFAR-10, 10,000 images (small ViT)",
    about="A ViT of 164,000 weights trained on 10,000 images of CIFAR-10; 2,000 are held out, 2,000 tested.",
    model=vit,
    recipe=Recipe(
        model={"channels": 3, "side": 32, "classes": 10, "patch": 8, "width": 64, "depth": 3, "heads": 4},
        epochs=30,
        batch=100,
        schedule=Schedule(warmup=0.1, plateau=0.4),
        ivon={"lr": 2.0, "ess": 8e5, "hess_init": 0.02, "beta2": 0.9995, "weight_decay": 1e-4, "clip_radius": 0.01},
    ),
)
GARMENTS_CNN_ADAMW, DIGITS_CNN_ADAMW = (
    ordinary(row, ADAMW, row.about.replace("trained on", "trained with AdamW on"), methods=METHODS)
    for row in (GARMENTS_CNN, DIGITS_CNN)
)
