"""What training does: how long, with which rate, on which changed images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch.optim import AdamW, Optimizer

from experiments.augment import UNCHANGED, Augment
from varprop.optim import IVON


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
    """Options of ``FixedEpochs`` other than the paper's."""
    by_length: ClassVar[bool] = False

    @property
    def options(self) -> Mapping[str, Any]:
        """Of the optimizer, its rate among them."""
        return self.ivon

    def optimizer(self, groups: Sequence[Mapping[str, Any]], seeds: Sequence[Sequence[int]]) -> Optimizer:
        """Over groups of parameters that have their options already; a seed for each row of each group."""
        seeded = [{**group, "seed": tuple(rows)} for group, rows in zip(groups, seeds, strict=True)]
        return IVON(seeded, lr=1.0, ess=1.0)  # each group has its own

    def gradients_in(self, optimizer: Any) -> AbstractContextManager[Any]:
        """Where the gradients of a step are to be taken."""
        return optimizer.sampled_params(train=True)


NO_TRAINING = Recipe(epochs=0, batch=0, ivon={})
"""Of experiments whose posterior is read or computed."""
UNCLIPPED = 1e6


@dataclass(frozen=True)
class AdamWRecipe(Recipe):
    """How a network is trained as most are: the weights alone, whose posterior comes from Adam's second moments."""

    ivon: Mapping[str, Any] = field(default_factory=dict)
    adamw: Mapping[str, Any] = field(default_factory=dict)
    gradient_clip: float = UNCLIPPED
    """Clipped gradients would have other squares."""

    @property
    def options(self) -> Mapping[str, Any]:
        return self.adamw

    def optimizer(self, groups: Sequence[Mapping[str, Any]], seeds: Sequence[Sequence[int]]) -> Optimizer:
        return AdamW([dict(group) for group in groups], fused=True)

    def gradients_in(self, optimizer: Any) -> AbstractContextManager[Any]:
        return nullcontext()


@dataclass(frozen=True)
class SentenceRecipe(AdamWRecipe):
    """Batches are of sentences of similar length and, on a CPU too, in bfloat16: a fifth of the time there.

    A row's name tells that it is trained so; the options that a results folder keeps do not.
    """

    by_length: ClassVar[bool] = True
