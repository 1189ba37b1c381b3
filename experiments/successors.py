"""What might come nearer to 64 samples than CVP at its cost: methods for the tables, fitted on held-out data alone.

``cvp-flat`` and ``cvp-widest`` have no scales, one width of the posterior and a temperature: the width of least NLL, or
of least AURC. ``cvp-ranked`` has scales fitted to NLL + weight · smooth AURC, the weight chosen by cross-validation.
``cvp-groups`` has a width for each head and branch. ``cvp-margin`` and ``cvp-directions`` take the variance of the
logits from gradients of the plain network, which know that tokens share their weights: of the margin, one backward
pass; of the first three classes, three. ``cvp-sampled-margin`` has it from 64 samples: a bound, not a method.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from varprop.batch import Batch, read
from varprop.calibration.calibrate import calibrate
from varprop.calibration.widths import PosteriorWidth
from varprop.errors import InputError
from varprop.evaluation.evaluate import evaluate_answers
from varprop.evaluation.methods import Method, named
from varprop.graph.fold import refold
from varprop.graph.registry import scale_path
from varprop.moments import Moments
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.prediction.expectations import normals
from varprop.prediction.links import ClassLink, Softmax
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.prediction import Prediction
from varprop.prediction.predictors import Predictor, Propagated, run
from varprop.rules import CVP

LOG_WIDTHS = tuple(-2.5 + 0.25 * i for i in range(11))  # of log₁₀ of the relative width
WEIGHTS = (0.0, 30.0)  # of AURC beside NLL
SOFTNESS = 0.3  # of a rank, in nats of the confidence's log-odds
EPOCHS, RATE, BATCH = 5, 0.05, 250
SHIFTS = (-1.5, 1.5)  # of the log variance of a group
WORTH = 2.0  # nats in all that a group's width must gain
STRENGTHS = (0.0, *(10 ** (0.5 * i) for i in range(-4, 9)))  # factors on a variance
TEMPERATURES, COARSE = tuple(math.exp(0.05 * i) for i in range(-16, 25)), 4
SAMPLES, POINTS, DIRECTIONS = 64, 256, 3
CHUNK = 25  # examples whose gradients are in memory together


@dataclass
class Case:
    """A network to be fitted, and what to."""

    model: nn.Module
    posterior: Posterior
    held_out: Any
    link: ClassLink
    lifted: MomentNet
    """Left as it is."""
    net: MomentNet = field(init=False)
    """A copy, to be fitted."""

    def __post_init__(self) -> None:
        self.net = copy.deepcopy(self.lifted)

    def batches(self) -> Iterator[Batch]:
        for batch in read(self.held_out):
            yield batch.to(self.net.device)


@dataclass(frozen=True)
class Successor(Method):
    """A method whose predictor is made by a function of a case."""

    make: Callable[[Case], Predictor] = field(kw_only=True)

    def build(self, model: nn.Module, posterior: Posterior, held_out: Any, **settings: Any) -> Predictor:
        lift = settings.get("lift") or (lambda rules: propagate(model, posterior, rules))
        return self.make(Case(model, posterior, held_out, settings.get("link") or Softmax(), lift(CVP)))


# --- one width ---------------------------------------------------------------------------------------


def flat(case: Case) -> Predictor:
    return _one_width(case, lambda nll, _: nll)


def widest(case: Case) -> Predictor:
    return _one_width(case, lambda _, risk: risk)


_TRIED: WeakKeyDictionary[MomentNet, dict[float, tuple[float, float, float]]] = WeakKeyDictionary()
"""What several methods begin with: by log₁₀ of the width, temperature, NLL and AURC."""


def _one_width(case: Case, judged: Callable[[float, float], float]) -> Predictor:
    """The width that is best by NLL and AURC, each with its own temperature of least NLL."""
    wide, tried = PosteriorWidth(case.net), _TRIED.setdefault(case.lifted, {})
    for log in LOG_WIDTHS:
        if log not in tried:
            wide.set(10**log)
            tried[log] = _tempered(case, _moments(case))
    best = min(tried, key=lambda log: judged(*tried[log][1:]))
    case.net.temperature = tried[best][0]
    wide.set(10**best)
    return Propagated(case.net, link=case.link)


@torch.no_grad()
def _moments(case: Case) -> list[tuple[Moments, Tensor]]:
    return [(case.net(*batch.args, **batch.kwargs), batch.target) for batch in case.batches()]


def _tempered(case: Case, pairs: Sequence[tuple[Moments, Tensor]]) -> tuple[float, float, float]:
    """The temperature of least NLL, that NLL, and the AURC."""

    @torch.no_grad()
    def nll(place: int) -> float:
        t = TEMPERATURES[place]
        return float(torch.cat([case.link.loss(x.divided_by(t), y) for x, y in pairs]).mean())

    middle = min(range(0, len(TEMPERATURES), COARSE), key=nll)
    places = range(max(0, middle - COARSE + 1), min(len(TEMPERATURES), middle + COARSE))
    best = TEMPERATURES[min(places, key=nll)]
    found = evaluate_answers([(case.link(x.divided_by(best)), y) for x, y in pairs], progress=False).metrics
    return best, found["nll"], found["aurc"]


# --- a loss that ranks ---------------------------------------------------------------------------------


def ranked(case: Case) -> Predictor:
    """From what calibration finds, by Adam on log α and log T; two folds decide on the weight."""
    start = calibrate(case.net, case.held_out, link=case.link, progress=False)
    whole = list(case.batches())
    parts = [[_every_second(batch, first) for batch in whole] for first in (0, 1)]
    risks = dict.fromkeys(WEIGHTS, 0.0)
    for weight in WEIGHTS:
        for fitted_to, judged_by in (parts, parts[::-1]):
            net = _descend(start, fitted_to, case.link, weight)
            answers = [(Propagated(net, link=case.link)(*b.args, **b.kwargs), b.target) for b in judged_by]
            risks[weight] += evaluate_answers(answers, progress=False).metrics["aurc"]
    best = min(risks, key=risks.__getitem__)
    return Propagated(_descend(start, whole, case.link, best), link=case.link)


def _every_second(batch: Batch, first: int) -> Batch:
    return batch.take(torch.arange(len(batch), device=batch.target.device) % 2 == first)


def _descend(start: MomentNet, batches: Sequence[Batch], link: ClassLink, weight: float) -> MomentNet:
    net = copy.deepcopy(start)
    scales = [net.scale[scale_path(name)].requires_grad_() for name in net.scales]
    u = torch.tensor(math.log(start.temperature), device=net.device, requires_grad=True)
    net.temperature = 1.0
    optimizer = torch.optim.Adam([*scales, u], lr=RATE)
    pieces = [batch.rows(i, i + BATCH) for batch in batches for i in range(0, len(batch), BATCH)]
    for _ in range(EPOCHS):
        for piece in pieces:
            logits = net(*piece.args, **piece.kwargs).divided_by(u.exp())
            loss = link.loss(logits, piece.target).mean()
            if weight:
                loss = loss + weight * smooth_aurc(*_rank_by(link, logits, piece.target))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for scale in scales:
        scale.requires_grad_(False).grad = None
    net.temperature = math.exp(float(u.detach()))
    return net


def _rank_by(link: ClassLink, logits: Moments, target: Tensor) -> tuple[Tensor, Tensor]:
    """The log-odds of the confidence, and how wrong the answer is."""
    found = link(logits)
    confidence = found.confidence.clamp(1e-6, 1 - 1e-6)
    return confidence.logit(), 1 - found.correctness(target).to(confidence)


def smooth_aurc(score: Tensor, wrong: Tensor, softness: float = SOFTNESS) -> Tensor:
    """Σᵢ wᵢ (H_N − H_{rᵢ − 1}) / N with harmonic numbers H, which is AURC; ranks r by sigmoids, H(r) ≈ ln(r + ½) + γ.

    rᵢ = ½ + Σⱼ σ((sⱼ − sᵢ)/softness): the example itself counts for ½, as those that are tied with it.
    """
    ranks = 0.5 + ((score[None] - score[:, None]) / softness).sigmoid().sum(1)
    count = len(score)
    return (wrong * (math.log(count + 0.5) - (ranks - 0.5).clamp(min=0.5).log())).sum() / count


# --- widths of heads and branches ----------------------------------------------------------------------


def groups(case: Case) -> Predictor:
    """From the best single width: the variance of one group after the other, up or down, while NLL falls by it."""
    _one_width(case, lambda nll, _: nll)
    net = case.net
    start = {path: var.clone() for path, var in net.var}
    parts = _parts(case.model, {path: var.shape for path, var in net.var})
    logs = dict.fromkeys(parts, 0.0)

    def look(logs: Mapping[str, float]) -> tuple[float, float]:
        for path, var in start.items():
            factor = torch.ones_like(var)
            for name, (where, rows) in parts.items():
                if where == path:
                    factor[rows] = math.exp(logs[name])
            net.var[path].copy_(var * factor)
        refold(net)
        net.temperature = 1.0
        temperature, nll, _ = _tempered(case, _moments(case))
        return nll, temperature

    best, temperature = look(logs)
    examples = sum(len(batch) for batch in case.batches())
    for name, shift in itertools.product(parts, SHIFTS):
        tried = {**logs, name: logs[name] + shift}
        nll, t = look(tried)
        if best - nll > WORTH / examples:
            logs, best, temperature = tried, nll, t
    look(logs)
    net.temperature = temperature
    return Propagated(net, link=case.link)


def _parts(model: nn.Module, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[str, slice]]:
    """Matrices; of those that make queries, keys and values together, a part for each of the three and each head."""
    heads = {name: many for name, module in model.named_modules() if (many := getattr(module, "heads", 0))}
    found: dict[str, tuple[str, slice]] = {}
    for path, shape in shapes.items():
        if len(shape) < 2:
            continue
        count = next((n for name, n in heads.items() if "qkv" in path and path.startswith(f"{name}.")), 0)
        size = shape[0] // (3 * count) if count else shape[0]
        for part in range(0, shape[0], size):
            found[f"{path}[{part}]"] = path, slice(part, part + size)
    return found


# --- variance from gradients ---------------------------------------------------------------------------


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


SUCCESSORS: Mapping[str, Successor] = {
    each.slug: each
    for each in (
        Successor("cvp-flat", "CVP, one width", make=flat),
        Successor("cvp-widest", "CVP, the width that ranks best", make=widest),
        Successor("cvp-ranked", "CVP, NLL and AURC", make=ranked),
        Successor("cvp-groups", "CVP, a width for each head and branch", make=groups),
        Successor("cvp-margin", "CVP, margin's variance by gradients", make=margin),
        Successor("cvp-directions", "CVP, covariance of three classes by gradients", make=directions),
        Successor("cvp-sampled-margin", "CVP, margin's variance by 64 samples", make=sampled_margin),
    )
}


def methods_named(text: str) -> list[Method]:
    """Of a list of slugs, the tables' methods and these."""
    try:
        return [SUCCESSORS[slug] if slug in SUCCESSORS else named(slug) for slug in text.split(",")]
    except InputError as error:
        raise InputError(f"{error}, {', '.join(SUCCESSORS)}") from None
