"""The Gaussian with the mean and variance of several sets of weights: checkpoints, draws, ensemble members."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from varprop.errors import PosteriorError, PosteriorMismatchError
from varprop.posterior.running import Running
from varprop.posterior.sources import Tensors, layout, placed, read, refuse_constant, required, shortened, unwrapped
from varprop.posterior.tensors import listing


def moments(model: nn.Module, samples: Iterable[Any]) -> tuple[Tensors, Tensors]:
    """Means and unbiased variances by parameter name, in one pass that holds one sample at a time."""
    model = required(model, "from_samples(model, samples)")
    if isinstance(samples, nn.Module | Mapping | str | os.PathLike) or not isinstance(samples, Iterable):
        raise PosteriorError(f"from_samples(model, samples): samples are several, not one {type(samples).__name__}")
    wanted = layout(unwrapped(model))
    running = Running()
    problems: list[str] = []
    for index, sample in enumerate(samples):
        try:
            weights, wrong = read(sample, wanted)
        except PosteriorError as error:
            wrong = [str(error)]
        problems += [f"sample {index}: {problem}" for problem in shortened(wrong)]
        if not problems:  # after the first mistake we only look for further ones
            running.add(weights)
    if problems:
        headline = f"these samples are not the weights of one {type(model).__name__}"
        raise PosteriorMismatchError(listing(headline, problems))
    if running.count < 2:
        raise PosteriorError(f"a variance needs at least 2 samples, and there are {running.count}")
    mean, var = placed(model, running.mean(), running.var(correction=1))
    remedy = "state_dict() refers to the live weights, so copy them: copy.deepcopy(model.state_dict())"
    refuse_constant(var.values(), f"the {running.count} samples", remedy)
    return _without_constants(model, mean, var)


def _without_constants(model: nn.Module, mean: Tensors, var: Tensors) -> tuple[Tensors, Tensors]:
    """Leave out what the samples share with the model: a frozen backbone need not carry zeros through the network."""
    own = dict(model.named_parameters())
    kept = [name for name in mean if bool((var[name] != 0).any() or (mean[name] != own[name].detach()).any())]
    return {name: mean[name] for name in kept}, {name: var[name] for name in kept}
