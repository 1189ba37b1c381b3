"""ImageNet with ResNet-50, from checkpoints written while training with IVON."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path

from torch import nn

from experiments.data.examples import Examples, hold_out
from experiments.data.image_files import ImageFiles, centre_crops, image_folder
from experiments.data.text_files import VARIABLE, roots
from experiments.exceptions import DataError, ExperimentError
from experiments.experiment import Experiment, ReadSplits, Sources, Splits, same_for_every_seed
from experiments.models.prepare import IMAGENET
from experiments.models.resnet import ResNet
from experiments.models.weights import ivon_checkpoint
from experiments.recipes import NO_TRAINING, Recipe
from varprop.posterior import Posterior

NAME = "imagenet-resnet50"
CLASSES = 1000
WANTED = (
    "give a folder of checkpoints of model and IVON optimizer, one for each seed, which is the last number in the "
    "file's name (resnet50-seed3.pt), or the file of seed 0"
)
ENDINGS = (".pt", ".pth", ".tar", ".ckpt")
_NUMBER = re.compile(r"\d+")


def splits(held_out: int) -> ReadSplits:
    """The validation images, of which ``held_out`` random ones are calibrated on.

    The paper does not say how it divided them: this division is ours.
    """

    @same_for_every_seed
    def load(sources: Sources) -> Splits:
        found = image_folder(validation_folder(sources.data))
        images = Examples(ImageFiles(found.paths, centre_crops), found.labels)
        test, held = hold_out(images, held_out)
        # Gone through in every epoch of every calibration: decoded once.
        decoded = Examples(held.read(slice(None)), held.labels)
        return Splits(images.take(slice(0)), decoded, test, found.classes)  # nothing is trained

    return load


def validation_folder(folder: Path | None) -> Path:
    """The folder with a folder of validation images for each of the 1,000 classes."""
    places = [root / below for root in roots(folder) for below in ("imagenet/val", "val", "")]
    counts = {place: _folders(place) for place in places}
    for place, count in counts.items():
        if count == CLASSES:
            return place
    looked = ", ".join(f"{place} ({count} folders)" if count else str(place) for place, count in counts.items())
    raise DataError(
        f"the validation images of ImageNet are not in {looked}: wanted is a folder for each of the {CLASSES} classes "
        f"(n01440764 …) with its images; give the folder above them, or set {VARIABLE} to one that holds imagenet/val"
    )


def _folders(place: Path) -> int:
    try:
        return sum(entry.is_dir() and not entry.name.startswith(".") for entry in place.iterdir())
    except OSError:
        return 0


def checkpoint(sources: Sources, seed: int) -> Path:
    """The file of a seed: the one in the folder whose last number in its name is the seed; or a file, of seed 0."""
    given = sources.trained_weights(NAME, WANTED)
    if given.is_file():
        if seed:
            raise ExperimentError(f"{given} is one checkpoint, which is taken for seed 0; for seed {seed} {WANTED}")
        return given
    files = sorted(file for file in given.iterdir() if file.suffix in ENDINGS)
    found = [file for file in files if (numbers := _NUMBER.findall(file.stem)) and int(numbers[-1]) == seed]
    if len(found) != 1:
        there = ", ".join(file.name for file in found or files[:8]) or f"no {', '.join(ENDINGS)}"
        raise ExperimentError(f"{len(found)} checkpoints in {given} are of seed {seed} (there: {there}); {WANTED}")
    return found[0]


def start(recipe: Recipe, sources: Sources, seed: int) -> nn.Module:
    """With the means and the norms' statistics of the checkpoint."""
    return ivon_checkpoint(ResNet(**recipe.model), checkpoint(sources, seed))[0]


def read_posterior(model: nn.Module, _: Recipe, sources: Sources, seed: int) -> Posterior:
    """The checkpoint is on the CPU, wherever the model is."""
    return ivon_checkpoint(copy.deepcopy(model).cpu(), checkpoint(sources, seed))[1]


IMAGENET_RESNET50 = Experiment(
    name=NAME,
    title="ImageNet (ResNet-50)",
    about="ResNet-50 trained elsewhere with IVON; 10,000 validation images of ImageNet are held out, 40,000 tested.",
    paper="ImageNet (ResNet-50)",
    splits=splits(held_out=10_000),
    from_weights=True,
    model=start,
    recipe=replace(NO_TRAINING, calibration={"micro_batch": 64}),
    prepare=IMAGENET,
    evaluation_batch=100,
    posterior=read_posterior,
)
