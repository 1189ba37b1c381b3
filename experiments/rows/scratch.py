"""What experiments have in common that train a small ViT on images from scratch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.data.images import ImageSet
from experiments.data.labelled import hold_out
from experiments.experiment import Sources, Splits
from experiments.models.vit import ViT
from experiments.recipes import Recipe


def splits(read: Callable[[Path | None], ImageSet], held_out: int) -> Callable[[Sources, int], Splits]:
    """The same images are held out for every seed, as in the paper: seeds differ in the training alone."""

    @functools.lru_cache(maxsize=1)
    def load(folder: Path | None) -> Splits:
        images = read(folder)
        return Splits(*hold_out(images.train, held_out), images.test, images.classes)

    return lambda sources, _: load(sources.data)


def vit(recipe: Recipe, _: Sources, seed: int) -> nn.Module:
    """The network of the recipe, with the seed's own weights; torch's random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ViT(**recipe.model)


def centred(images: Tensor) -> Tensor:
    """From −1 to 1."""
    return images.float() / 127.5 - 1
