"""What an experiment is: data, a network, how to train it, and what of the paper it is to be compared with."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from experiments.data.examples import Examples
from experiments.exceptions import ExperimentError
from experiments.recipes import AdamWRecipe, Recipe
from varprop.evaluation.methods import ABLATIONS, Method, listed, monte_carlo
from varprop.posterior import Posterior
from varprop.prediction.links import ClassLink, Softmax

SAMPLES = (1, 2, 4, 8, 16, 32, 64)
METHODS = (*listed("mean,temperature"), *map(monte_carlo, SAMPLES), *ABLATIONS.values())
"""All methods of the paper's tables and figures."""
SOFTMAX = Softmax()


class Splits(NamedTuple):
    """What is trained on, what is calibrated on, what is reported on; names of the classes, and tests as texts."""

    train: Examples
    held_out: Examples
    test: Examples
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sources:
    """Folders given by the user; where data lies that nobody gave a folder for, its reader knows."""

    data: Path | None = None
    weights: Path | None = None

    @property
    def fingerprint(self) -> str | None:
        """Of the weights: other ones make another result."""
        return None if self.weights is None else _fingerprint(self.weights.expanduser())

    def trained_weights(self, experiment: str, wanted: str) -> Path:
        """The given file or folder, which must be there."""
        if self.weights is None:
            raise ExperimentError(
                f"{experiment} starts from trained weights and was given none: {wanted}, with --weights"
            )
        path = self.weights.expanduser()
        if not path.exists():
            raise ExperimentError(f"the weights of {experiment} are not at {path}: {wanted}, with --weights")
        return path


NO_SOURCES = Sources()


@functools.lru_cache(maxsize=8)
def _fingerprint(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


ReadSplits = Callable[[Sources, int], Splits]
"""By seed."""
MakeModel = Callable[[Recipe, Sources, int], nn.Module]
"""A network to start from, by seed."""


def same_for_every_seed(read: Callable[[Sources], Splits]) -> ReadSplits:
    """Read once. Seeds then differ in the training alone, as in the paper."""
    once = functools.lru_cache(maxsize=1)(read)
    return lambda sources, _: once(sources)


@dataclass(frozen=True)
class Pretraining:
    """A stage before training, which goes on from the weights of the one before it."""

    examples: Callable[[Sources, int], Examples]
    """As many as asked for."""
    count: int
    model: MakeModel
    recipe: AdamWRecipe


@dataclass(frozen=True)
class Experiment:
    """One row of the tables."""

    name: str
    title: str
    about: str
    """One sentence: what is trained on what."""
    splits: ReadSplits
    model: MakeModel
    recipe: Recipe
    prepare: Callable[[Any], Any]
    """From raw inputs, as the data has them, to what the network takes; on its device."""
    link: ClassLink = SOFTMAX
    """What the logits mean: one class, or with a sigmoid any number of answers, which may have scores."""
    paper: str | None = None
    """The paper's row that it reproduces, or stands in for."""
    stand_in: bool = False
    posterior: Callable[[nn.Module, Recipe, Sources, int], Posterior] | None = None
    """Where the posterior comes from, if not from training."""
    from_weights: bool = False
    """It starts from trained weights, which must be given."""
    pretraining: tuple[Pretraining, ...] = ()
    """Stages that make the weights which every seed starts from, where they are not trained elsewhere."""
    methods: tuple[Method, ...] = METHODS
    side_by_side: int = 1
    """This many seeds are trained together on a GPU."""
    evaluation_batch: int = 500
    """This many examples go through a network together on a GPU, to evaluate it."""
    candidates: Mapping[str, Recipe] = field(default_factory=dict)
    """Recipes that ``recipe`` was chosen from, on held-out data."""
