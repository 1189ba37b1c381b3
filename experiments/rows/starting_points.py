"""Where experiments start: networks drawn from a seed or from trained weights, and images divided into parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from experiments.data.examples import ImageSet, hold_out
from experiments.experiment import MakeModel, ReadSplits, Sources, Splits, same_for_every_seed
from experiments.models.small_networks import CNN, ViT
from experiments.models.weights import seeded
from experiments.recipes import Recipe


def splits(
    read: Callable[[Path | None], ImageSet], held_out: int, trained: int | None = None, tested: int | None = None
) -> ReadSplits:
    """So many are held out, and of the others and of the test images the first ones taken, or all."""

    @same_for_every_seed
    def load(sources: Sources) -> Splits:
        images = read(sources.data)
        train, held = hold_out(images.train, held_out)
        return Splits(train.take(slice(trained)), held, images.test.take(slice(tested)), images.classes)

    return load


def from_scratch(network: type[nn.Module]) -> MakeModel:
    """With the options of the recipe, and the seed's own weights."""

    def make(recipe: Recipe, _: Sources, seed: int) -> nn.Module:
        return seeded(seed, network, **recipe.model)

    return make


vit, cnn = from_scratch(ViT), from_scratch(CNN)


def from_weights(experiment: str, wanted: str, make: Callable[..., nn.Module]) -> MakeModel:
    """``make(path, seed=…, **options of the recipe)``: the given weights, with a head drawn from the seed."""

    def start(recipe: Recipe, sources: Sources, seed: int) -> nn.Module:
        return make(sources.trained_weights(experiment, wanted), seed=seed, **recipe.model)

    return start


def centred(images: Tensor) -> Tensor:
    """From −1 to 1."""
    return images.float() / 127.5 - 1
