"""What the demo does with each data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """How to train, and on how much."""

    model: Mapping[str, Any]
    held_out: int
    """Training images kept for calibration and thresholds."""
    epochs: int
    batch: int
    ivon: Mapping[str, Any]
    train: int | None = None
    """So many training images at most; None for all."""
    test: int | None = None
    calibration: Mapping[str, Any] = field(default_factory=dict)


_DIGITS = {"lr": 1.0, "ess": 1e4, "hess_init": 0.1, "beta2": 0.9995, "weight_decay": 1e-4, "clip_radius": 0.05}
_LARGER = {"lr": 1.0, "ess": 6e5, "hess_init": 0.05, "beta2": 0.9995, "weight_decay": 1e-4, "clip_radius": 0.01}

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        # Few images to train on, so that the network has something to be unsure about.
        "digits": Recipe(
            model={"channels": 1, "tokens": 16, "patch": 4, "stride": 2, "padding": 1, "width": 32},
            train=600,
            held_out=600,
            epochs=25,
            batch=32,
            ivon=_DIGITS,
            calibration={"batch_size": 100, "epochs": 20, "lr": 0.1},  # few images make few steps
        ),
        "fashion-mnist": Recipe(
            model={"channels": 1, "tokens": 49, "patch": 4, "stride": 4, "width": 64},
            held_out=5000,
            epochs=10,
            batch=128,
            ivon=_LARGER,
        ),
        "cifar10": Recipe(
            model={"channels": 3, "tokens": 64, "patch": 4, "stride": 4, "width": 96, "depth": 4},
            held_out=5000,
            epochs=30,
            batch=128,
            ivon=_LARGER,
        ),
    }
)
