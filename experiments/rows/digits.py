"""Digits: the demo, in a minute on a CPU. Not in the paper."""

from __future__ import annotations

from experiments.experiment import Experiment
from experiments.recipes import Recipe, Schedule
from experiments.rows.scratch import centred, splits, vit
from varprop.evaluation.methods import listed

DEMO_METHODS = tuple(listed("mean,temperature,mc-2,mc-4,mc-8,mc-64,streamlining,cvp"))

# Few images to train on, so that the network has something to be unsure about.
DIGITS = Experiment(
    name="digits",
    title="Digits (small ViT)",
    about="A ViT of 27,000 weights trained on 600 of scikit-learn's handwritten digits.",
    splits=splits("digits", held_out=600),
    model=vit,
    recipe=Recipe(
        model={"channels": 1, "side": 8, "classes": 10, "patch": 4, "stride": 2, "padding": 1, "width": 32},
        epochs=25,
        batch=32,
        schedule=Schedule(warmup=0.3),
        ivon={
            "lr": 1.0,
            "ess": 1e4,
            "hess_init": 0.1,
            "beta2": 0.9995,
            "weight_decay": 1e-4,
            "clip_radius": 0.05,
        },
        calibration={"batch_size": 100, "epochs": 20, "lr": 0.1},  # few images make few steps
    ),
    prepare=centred,
    methods=DEMO_METHODS,
    side_by_side=10,
)
