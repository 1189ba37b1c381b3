"""What might come nearer to 64 samples than CVP at its cost: methods for the tables, fitted on held-out data alone.

``cvp-flat`` and ``cvp-widest`` have no scales, one width of the posterior and a temperature: the width of least NLL, or
of least AURC. ``cvp-ranked`` has scales fitted to NLL + weight · smooth AURC, the weight chosen by cross-validation.
``cvp-groups`` has a width for each head and branch. ``cvp-margin`` and ``cvp-directions`` take the variance of the
logits from gradients of the plain network, which know that tokens share their weights: of the margin, one backward
pass; of the first three classes, three. ``cvp-sampled-margin`` has it from 64 samples: a bound, not a method.
``mc-64-flat`` is what they are measured by: 64 samples whose posterior has its width and temperature as ``cvp-flat``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.fitted_widths import (
    COARSE,
    SAMPLES,
    TEMPERATURES,
    Case,
    adaptive,
    flat,
    groups,
    ranked,
    sampled,
    widest,
)
from varprop.batch import Batch
from varprop.errors import InputError
from varprop.evaluation.evaluate import evaluate_answers
from varprop.evaluation.methods import METHODS, Method, named
from varprop.graph.output import run
from varprop.moments import Moments
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.prediction.expectations import normals
from varprop.prediction.links import ClassLink, Softmax
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.prediction import Prediction
from varprop.prediction.predictors import Predictor
from varprop.rules import CVP

STRENGTHS = (0.0, *(10 ** (0.5 * i) for i in range(-4, 9)))  # factors on a variance
POINTS, DIRECTIONS = 256, 3
CHUNK = 25  # examples whose gradients are in memory together


class Directed(Predictor):
    """CVP's mean, with a temperature of each example, T √(1 + s v), or a covariance of some classes beside CVP's.

    ``factor(*args, **kwargs)``: [N, C, K], so that L Lᵀ is the covariance; its margin's variance is v.
    """

    link: ClassLink

    def __init__(self, net: MomentNet, link: ClassLink, factor: Callable[..., Tensor], *, margin: bool) -> None:
        self.net, self.link, self.factor, self.margin = net, link, factor, margin
        self.strength, self.temperature = 0.0, 1.0

    @property
    def device(self) -> torch.device:
        return self.net.device

    @torch.no_grad()
    def parts(self, *args: Any, **kwargs: Any) -> tuple[Moments, Tensor]:
        return self.net(*args, **kwargs), self.factor(*args, **kwargs)

    def answer(self, logits: Moments, factor: Tensor) -> Prediction:
        if self.margin:
            var = factor.square().sum(-1).amax(-1)  # the margin's, kept with the first class
            scale = self.temperature * (1 + self.strength * var).sqrt()[:, None]
            return self.link(Moments(logits.mean / scale, logits.var / scale**2))
        points = normals(POINTS, sum(factor.shape[1:]), dtype=factor.dtype, device=factor.device)
        own, shared = points.split(list(factor.shape[1:]), 1)
        draws = logits.mean[:, None] + logits.var.sqrt()[:, None] * own
        draws = draws + math.sqrt(self.strength) * torch.einsum("pk,nck->npc", shared, factor)
        probs = self.link.squash(draws / self.temperature).mean(1)
        return Prediction(probs, logits, self.link)

    def __call__(self, *args: Any, **kwargs: Any) -> Prediction:
        with torch.no_grad():
            return self.answer(*self.parts(*args, **kwargs))

    def fit(self, batches: Iterator[Batch]) -> Directed:
        """The strength of least AURC, each with the temperature of least NLL."""
        known = [(*self.parts(*batch.args, **batch.kwargs), batch.target) for batch in batches]
        found = {}
        for self.strength in STRENGTHS:
            tried = {}
            for self.temperature in TEMPERATURES[::COARSE]:
                answers = [(self.answer(logits, factor), y) for logits, factor, y in known]
                metrics = evaluate_answers(answers, progress=False).metrics
                tried[metrics["nll"]] = metrics["aurc"], self.temperature
            risk, temperature = tried[min(tried)]
            found[risk] = self.strength, temperature
        self.strength, self.temperature = found[min(found)]
        return self


def margin(case: Case) -> Predictor:
    return _directed(case, _gradients(case, 1), margin=True)


def directions(case: Case) -> Predictor:
    return _directed(case, _gradients(case, DIRECTIONS), margin=False)


def sampled_margin(case: Case) -> Predictor:
    sampler = MonteCarlo(case.model, case.posterior, SAMPLES, link=case.link)

    def factor(*args: Any, **kwargs: Any) -> Tensor:
        draws = torch.stack(list(sampler.draws(*args, **kwargs)))
        first, second = draws.mean(0).topk(2).indices.T
        gap = draws.gather(2, first.expand(len(draws), -1)[..., None]) - draws.gather(
            2, second.expand(len(draws), -1)[..., None]
        )
        result = torch.zeros_like(draws[0])[..., None]
        return result.scatter(1, first[:, None, None], gap.std(0)[..., None])

    return _directed(case, factor, margin=True)


def _directed(case: Case, factor: Callable[..., Tensor], *, margin: bool) -> Predictor:
    """Beside the means of ``cvp-flat``."""
    flat(case)
    case.net.temperature = 1.0
    return Directed(case.net, case.link, factor, margin=margin).fit(case.batches())


def _gradients(case: Case, count: int) -> Callable[..., Tensor]:
    """L from gradients J of the plain network: of the margin, or of the first classes, J Σ Jᵀ = L Lᵀ."""
    mean, var = ({name: pair[i] for name, pair in case.posterior.items()} for i in (0, 1))

    def logits_of_one(weights: dict[str, Tensor], args: Any, kwargs: Any, chosen: Tensor) -> Tensor:
        inputs = tuple(x[None] for x in args), {name: x[None] for name, x in kwargs.items()}
        values = run(case.model, weights, *inputs, None)[0][chosen]
        return values[:1] - values[1:2] if count == 1 else values

    def covariance_of_one(*example: Any) -> Tensor:
        rows = torch.func.jacrev(logits_of_one)(mean, *example)
        scaled = torch.cat([(rows[name] * var[name].sqrt()).flatten(1) for name in rows], 1)
        return scaled @ scaled.T

    def factor(*args: Any, **kwargs: Any) -> Tensor:
        logits = run(case.model, mean, args, kwargs, None)
        chosen = logits.topk(max(2, min(count, logits.shape[-1]))).indices
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # for which there are rules of vmap
            found = torch.func.vmap(covariance_of_one, chunk_size=CHUNK)(args, kwargs, chosen).detach()
        size = found.shape[-1]
        jitter = 1e-6 * found.diagonal(dim1=1, dim2=2).mean(1) + 1e-12
        root = torch.linalg.cholesky(found + jitter[:, None, None] * torch.eye(size).to(found))
        result = torch.zeros(*logits.shape, size, device=logits.device, dtype=root.dtype)
        return result.scatter(1, chosen[:, :size, None].expand(-1, -1, size), root)

    return factor


@dataclass(frozen=True)
class Variant(Method):
    """A method whose predictor is made by a function of a case."""

    make: Callable[[Case], Predictor] = field(kw_only=True)

    def build(self, model: nn.Module, posterior: Posterior, held_out: Any, **settings: Any) -> Predictor:
        lift = settings.get("lift") or (lambda rules: propagate(model, posterior, rules))
        return self.make(Case(model, posterior, held_out, settings.get("link") or Softmax(), lift(CVP)))


VARIANTS: Mapping[str, Variant] = {
    each.slug: each
    for each in (
        Variant("cvp-adaptive", METHODS["cvp-adaptive"].title, CVP, make=adaptive),
        Variant("cvp-flat", "CVP, one width", make=flat),
        Variant("cvp-widest", "CVP, the width that ranks best", make=widest),
        Variant("cvp-ranked", "CVP, NLL and AURC", make=ranked),
        Variant("cvp-groups", "CVP, a width for each head and branch", make=groups),
        Variant("cvp-margin", "CVP, margin's variance by gradients", make=margin),
        Variant("cvp-directions", "CVP, covariance of three classes by gradients", make=directions),
        Variant("mc-64-flat", "MC-64, one width", make=sampled),
        Variant("cvp-sampled-margin", "CVP, margin's variance by 64 samples", make=sampled_margin),
    )
}


def methods_named(text: str) -> list[Method]:
    """Of a list of slugs, the tables' methods and these; what several begin with is computed once."""
    try:
        return [VARIANTS[slug] if slug in VARIANTS else named(slug) for slug in text.split(",")]
    except InputError as error:
        raise InputError(f"{error}, {', '.join(VARIANTS)}") from None
