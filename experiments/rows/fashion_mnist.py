"""Fashion-MNIST: half an hour on a CPU. Not in the paper."""

from __future__ import annotations

from experiments.data.idx import fashion_mnist
from experiments.experiment import Experiment
from experiments.recipes import Recipe, Schedule
from experiments.rows.scratch import centred, splits, vit
from varprop.evaluation.methods import listed

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
