"""Small CNNs and ViTs, with IVON and with AdamW: minutes on a CPU, half an hour for all of Fashion-MNIST.

Not in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from experiments.data.cifar import cifar10
from experiments.data.examples import ImageSet
from experiments.data.idx import fashion_mnist, mnist
from experiments.data.imagenet import tiny_imagenet
from experiments.experiment import Experiment
from experiments.recipes import AdamWRecipe, Recipe, Schedule
from experiments.rows.adamw import FROM_SCRATCH, with_adamw
from experiments.rows.starting_points import centred, cnn, splits, vit
from varprop.evaluation.methods import listed

METHODS = tuple(listed("mean,temperature,mc-16,streamlining,cvp"))
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


def small(name: str, title: str, what: str, read: Callable[[Path | None], ImageSet]) -> Experiment:
    return Experiment(
        name=name,
        title=f"{title} (small CNN)",
        about=f"A CNN of 52,000 weights trained on 10,000 images of {what}; 2,000 are held out, 2,000 tested.",
        splits=splits(read, held_out=2_000, trained=10_000, tested=2_000),
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
    with_adamw(row, ADAMW, row.about.replace("trained on", "trained with AdamW on"), methods=METHODS)
    for row in (GARMENTS_CNN, DIGITS_CNN)
)
SMALL_VIT_ADAMW = replace(FROM_SCRATCH, epochs=15, batch=100, schedule=Schedule(warmup=0.1))
OBJECTS_VIT_ADAMW = with_adamw(
    OBJECTS_VIT,
    replace(SMALL_VIT_ADAMW, model=OBJECTS_VIT.recipe.model),
    OBJECTS_VIT.about.replace("trained on", "trained with AdamW on"),
    methods=METHODS,
)
SCENES_VIT_ADAMW = with_adamw(
    OBJECTS_VIT_ADAMW,
    replace(SMALL_VIT_ADAMW, model={**OBJECTS_VIT.recipe.model, "side": 64, "classes": 100}, epochs=30),
    "A ViT of 170,000 weights trained with AdamW on 10,000 images of 100 classes; 2,000 are held out, 5,000 tested.",
    name="scenes-vit-adamw",
    title="Tiny-ImageNet-100, 10,000 images (small ViT, AdamW)",
    splits=splits(tiny_imagenet, held_out=2_000, trained=10_000),
    methods=METHODS,
)


FASHION_MNIST = Experiment(
    name="fashion-mnist",
    title="Fashion-MNIST (small ViT)",
    about="A ViT of 100,000 weights trained on 55,000 images of garments.",
    splits=splits(fashion_mnist, held_out=5000),
    model=vit,
    recipe=Recipe(
        model={"channels": 1, "side": 28, "classes": 10, "patch": 4, "width": 64},
        epochs=10,
        batch=128,
        schedule=Schedule(warmup=0.3),
        ivon={
            "lr": 1.0,
            "ess": 6e5,
            "hess_init": 0.05,
            "beta2": 0.9995,
            "weight_decay": 1e-4,
            "clip_radius": 0.01,
        },
    ),
    prepare=centred,
    methods=tuple(listed("mean,temperature,mc-2,mc-4,mc-8,mc-64,streamlining,cvp")),
    side_by_side=10,
)
FASHION_MNIST_CNN_ADAMW = with_adamw(
    FASHION_MNIST,
    replace(FROM_SCRATCH, model={"channels": 1, "side": 28, "classes": 10}, epochs=15),
    "A CNN of 420,000 weights trained with AdamW on 55,000 images of garments; 5,000 are held out.",
    name="fashion-mnist-cnn-adamw",
    title="Fashion-MNIST (small CNN, AdamW)",
    model=cnn,
)
