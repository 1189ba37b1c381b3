"""What experiments have in common that train a small ViT on images from scratch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from experiments.data import Images
from experiments.data import load as read
from experiments.experiment import Sources, Splits
from experiments.models.vit import ViT
from experiments.recipes import Recipe


def splits(name: str, held_out: int) -> Callable[[Sources, int], Splits]:
    """The same images are held out for every seed, as in the paper: seeds differ in the training alone."""

    @functools.lru_cache(maxsize=1)
    def load(sources: Sources) -> tuple[Images, Splits]:
        images = read(name, sources.data)
        train, held = images.hold_out(held_out)
        return images, Splits(train, held, images.test, images.classes)

    return lambda sources, _: load(sources)[1]


def vit(recipe: Recipe, _: Sources, seed: int) -> nn.Module:
    """The network of the recipe, with the seed's own weights; torch's random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ViT(**recipe.model)


def centred(images: Tensor) -> Tensor:
    """From −1 to 1."""
    return images.float() / 127.5 - 1
