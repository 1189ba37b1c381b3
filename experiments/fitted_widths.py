"""Widths of a posterior, fitted on held-out data: one for all, one for each head and branch; and scales that rank."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from varprop.batch import Batch, read
from varprop.calibration.calibrate import calibrate
from varprop.calibration.widths import PosteriorWidth
from varprop.evaluation.evaluate import evaluate_answers
from varprop.graph.fold import refold
from varprop.graph.registry import scale_path
from varprop.moments import Moments
from varprop.network.moment_net import MomentNet
from varprop.posterior import Posterior
from varprop.prediction.links import ClassLink
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.predictors import Predictor, Propagated

LOG_WIDTHS = tuple(-2.5 + 0.25 * i for i in range(11))  # of log₁₀ of the relative width
WEIGHTS = (0.0, 30.0)  # of AURC beside NLL
SOFTNESS = 0.3  # of a rank, in nats of the confidence's log-odds
EPOCHS, RATE, BATCH = 5, 0.05, 250
SHIFTS = (-1.5, 1.5)  # of the log variance of a group
WORTH = 2.0  # nats in all that a group's width must gain
SAMPLES, FEW = 64, 1_000  # held-out examples that samples are fitted to
TEMPERATURES, COARSE = tuple(math.exp(0.05 * i) for i in range(-16, 25)), 4


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

    best = TEMPERATURES[_best_place(nll)]
    found = evaluate_answers([(case.link(x.divided_by(best)), y) for x, y in pairs], progress=False).metrics
    return best, found["nll"], found["aurc"]


def _best_place(nll: Callable[[int], float]) -> int:
    """Among the temperatures."""
    middle = min(range(0, len(TEMPERATURES), COARSE), key=nll)
    return min(range(max(0, middle - COARSE + 1), min(len(TEMPERATURES), middle + COARSE)), key=nll)


class TemperedSamples(MonteCarlo):
    """Monte Carlo whose logits are divided by a temperature."""

    temperature = 1.0

    def draws(self, *args: Any, **kwargs: Any) -> Iterator[Tensor]:
        for logits in super().draws(*args, **kwargs):
            yield logits / self.temperature


def sampled(case: Case) -> Predictor:
    """Samples of the posterior whose width, of the same grid, has the least NLL, with its own temperature.

    Passes are many: from the width that is nearest to the posterior's own, downhill, by some of the examples.
    """
    mean, var = ([pair[i].double() for _, pair in case.posterior.items()] for i in (0, 1))
    own = math.sqrt(float(sum(x.sum() for x in var)) / float(sum(x.square().sum() for x in mean)))

    @functools.cache
    def at(place: int) -> tuple[float, TemperedSamples]:
        wide = case.posterior.scaled((10 ** LOG_WIDTHS[place] / own) ** 2)
        samples = TemperedSamples(case.model, wide, SAMPLES, link=case.link)
        nll, samples.temperature = _tempered_samples(samples, case)
        return nll, samples

    places = range(len(LOG_WIDTHS))
    best, before = min(places, key=lambda i: abs(LOG_WIDTHS[i] - math.log10(own))), -1
    while best != before:
        before, near = best, [i for i in (best - 1, best, best + 1) if i in places]
        best = min(near, key=lambda i: at(i)[0])
    return at(best)[1]


def _some(batches: Iterable[Batch]) -> Iterator[Batch]:
    seen = 0
    for batch in batches:
        if seen < FEW:
            yield batch.rows(0, FEW - seen)
        seen += len(batch)


@torch.no_grad()
def _tempered_samples(samples: TemperedSamples, case: Case) -> tuple[float, float]:
    """The least NLL and its temperature."""
    known = [(torch.stack(list(samples.draws(*b.args, **b.kwargs))), b.target) for b in _some(case.batches())]

    def nll(place: int) -> float:
        answers = ((case.link.average(draws / TEMPERATURES[place]), y) for draws, y in known)
        return evaluate_answers(list(answers), progress=False).metrics["nll"]

    best = _best_place(nll)
    return nll(best), TEMPERATURES[best]


# --- the default, and a loss that ranks ----------------------------------------------------------------

_CALIBRATED: WeakKeyDictionary[MomentNet, MomentNet] = WeakKeyDictionary()


def adaptive(case: Case) -> Propagated:
    """What calibration finds by default; another method begins with it."""
    if case.lifted not in _CALIBRATED:
        _CALIBRATED[case.lifted] = calibrate(case.lifted, case.held_out, link=case.link, progress=False)
    return Propagated(_CALIBRATED[case.lifted], link=case.link)


def ranked(case: Case) -> Predictor:
    """From what calibration finds, by Adam on log α and log T; two folds decide on the weight."""
    start = adaptive(case).net
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
