"""A trained network trained on with SGD at a constant rate: where diagonal SWAG collects its weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from experiments.augment import UNCHANGED, apply
from experiments.graph import Gradients
from experiments.pipeline import Pipeline
from experiments.training import loss_of
from varprop.batch import read
from varprop.posterior import Posterior
from varprop.posterior.swag import SWAG
from varprop.prediction.predictors import run

EPOCHS, COLLECTED = 4, 20
RATES = (0.003, 0.03)
MOMENTUM = 0.9


def collect(pipeline: Pipeline, model: nn.Module, seed: int, rate: float) -> Posterior:
    """Mean and variance of the weights along ``EPOCHS`` more epochs; the model stays as it is."""
    device, recipe, experiment = pipeline.device, pipeline.recipe, pipeline.experiment
    examples, loss = pipeline.splits(seed).train.to(device), loss_of(experiment.link)
    model, swag = copy.deepcopy(model), SWAG()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)

    def mean_loss(args: Any, kwargs: Any, target: Tensor) -> Tensor:
        return loss(run(model, {}, args, kwargs, None), target).mean()

    gradients = Gradients(mean_loss, [*model.parameters()])
    generator, size = torch.Generator().manual_seed(seed), min(recipe.batch, len(examples))
    every = max(1, len(examples) * EPOCHS // (size * COLLECTED))
    for step in range(every * COLLECTED):
        rows = torch.randint(len(examples), (size,), generator=generator).to(device)
        draws = {name: x.to(device) for name, x in recipe.augment.draw(size, generator).items()}
        raw = examples.read(rows)
        if isinstance(raw, Tensor) and recipe.augment != UNCHANGED:
            raw = apply(raw, draws)
        batch = next(read([(experiment.prepare(raw), examples.labels[rows])]))
        optimizer.zero_grad()
        gradients(batch.args, batch.kwargs, batch.target)
        optimizer.step()
        if (step + 1) % every == 0:
            swag.update_parameters(model)
    return Posterior.from_swag(model, swag)
