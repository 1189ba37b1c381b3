"""Monte Carlo: the average of networks whose weights are drawn from the posterior."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from varprop.errors import InputError
from varprop.graph.diagnostics import refuse_training
from varprop.graph.output import Output, run
from varprop.graph.signature import takes_one
from varprop.network.moment_net import MomentNet
from varprop.posterior import Posterior
from varprop.prediction.links import Link, Softmax
from varprop.prediction.predictors import Predictor, class_names, device_of
from varprop.rules import CVP


class MonteCarlo(Predictor):
    """``samples`` networks with weights drawn from the posterior; their probabilities are averaged.

    The same draws are made in every call, from ``seed``, on the device of the posterior; the model's own weights are
    never touched. ``at_once`` networks run as one (``torch.func.vmap``), which helps small models on large devices
    and takes as many copies of the weights.
    """

    def __init__(
        self,
        model: nn.Module,
        posterior: Posterior,
        samples: int = 64,
        *,
        link: Link | None = None,
        seed: int = 0,
        at_once: int = 1,
        output: Output = None,
    ) -> None:
        if samples < 1 or at_once < 1:
            raise InputError(f"samples={samples}, at_once={at_once}: both must be at least 1")
        refuse_training(model)
        self.model, self.samples, self.link = model, samples, link or Softmax()
        self.classes, self.takes_one = class_names(model), takes_one(model.forward)
        self.posterior = Posterior(posterior.resolve(model))
        self.seed, self.at_once, self.output = seed, at_once, output

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    def network(self) -> MomentNet:
        return MomentNet(self.model, self.posterior, CVP, self.output)

    def settings(self) -> dict[str, Any]:
        return {"samples": self.samples, "seed": self.seed, "at_once": self.at_once}

    def weights(self, *, in_place: bool = False) -> Iterator[dict[str, Tensor]]:
        """The draws, one after the other, or each ``in_place`` of the one before."""
        device = next((mean.device for mean in self.posterior.mean.values()), self.device)
        generator = torch.Generator(device).manual_seed(self.seed)
        yield from itertools.islice(self.posterior.samples(generator, in_place=in_place), self.samples)

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.named(self.link.average(self.draws(*args, **kwargs)))

    def draws(self, *args: Any, **kwargs: Any) -> Iterator[Tensor]:
        """The logits of each network."""
        refuse_training(self.model)
        weights, places = self.weights(in_place=self.at_once == 1), places_of(self.model)
        while group := list(itertools.islice(weights, self.at_once)):
            if len(group) > 1:
                yield from self._together(group, args, kwargs)
            elif places is None:
                yield run(self.model, group[0], args, kwargs, self.output)
            else:
                with exchanged(places, group[0]):
                    logits = run(self.model, {}, args, kwargs, self.output)
                yield logits

    def _together(self, group: list[dict[str, Tensor]], args: Any, kwargs: Any) -> Iterator[Tensor]:
        stacked = {name: torch.stack([weights[name] for weights in group]) for name in group[0]}
        with sdpa_kernel(SDPBackend.MATH):  # CUDA's fused attention takes no mask that is the same for all (torch 2.11)
            found = torch.func.vmap(lambda weights: run(self.model, weights, args, kwargs, self.output))(stacked)
        yield from found

    def __repr__(self) -> str:
        return f"MonteCarlo({type(self.model).__name__}, samples={self.samples}, link={self.link})"


Places = dict[str, list[tuple[dict[str, Any], str]]]


def places_of(model: nn.Module) -> Places | None:
    """Where the modules of a model keep each parameter; None for recurrent layers, which keep them elsewhere too."""
    modules = list(model.modules())
    if any(isinstance(module, nn.RNNBase) for module in modules):
        return None
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    places: Places = {}
    for module in modules:
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(names[id(parameter)], []).append((module._parameters, leaf))
    return places


@contextlib.contextmanager
def exchanged(places: Places, weights: dict[str, Tensor]) -> Iterator[None]:
    """While open, the model has these weights; its own come back whatever happens.

    As ``torch.func.functional_call``, which takes as long as a pass of a small model to find out where they belong.
    """
    spots = [(owner, leaf, weight) for name, weight in weights.items() for owner, leaf in places[name]]
    own = [owner[leaf] for owner, leaf, _ in spots]
    try:
        for owner, leaf, weight in spots:
            owner[leaf] = weight
        yield
    finally:
        for (owner, leaf, _), parameter in zip(spots, own, strict=True):
            owner[leaf] = parameter
