"""What training does: how long, with which rate, on which changed images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments.augment import UNCHANGED, Augment


@dataclass(frozen=True)
class Schedule:
    """The rate over training, as a share of its peak: linear rise, a plateau, then half a cosine down to 0."""

    warmup: float = 0.05
    plateau: float = 0.0
    """Both are shares of all steps."""

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            return progress / self.warmup
        start = self.warmup + self.plateau
        return 1.0 if progress <= start else 0.5 * (1 + math.cos(math.pi * (progress - start) / (1 - start)))


COSINE = Schedule()


@dataclass(frozen=True)
class Recipe:
    """How a network is trained with IVON, and calibrated."""

    epochs: int
    batch: int
    ivon: Mapping[str, Any]
    schedule: Schedule = COSINE
    augment: Augment = UNCHANGED
    gradient_clip: float = 1.0
    """Largest norm of a network's gradient."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Options of the experiment's model."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``calibrate`` other than the paper's."""
