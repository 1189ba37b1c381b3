"""The default calibration: width, temperature and scales, as many of them as cross-validation supports."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop.calibration.folds import Folds, Piece, parts, split_folds
from varprop.calibration.procedure import HeldOut, Request
from varprop.calibration.shrinkage import Pass, Prior, ScaleObjective, fisher, fit, refine
from varprop.calibration.widths import WIDEST, Array, OutputParameter, PosteriorWidth, Widths, forward, search
from varprop.errors import CalibrationError
from varprop.graph.captured import outside
from varprop.network.moment_net import MomentNet
from varprop.network.record import Calibration
from varprop.prediction.links import Categorical
from varprop.prediction.targets import labelled

SPREADS = (0.3, 1.0, 3.0)  # of log α: candidates for the standard deviation of their prior
EXAMPLES = 10  # that each scale needs, and more if it is freer than ±1: with fewer they fit noise, unseen by one step
SLACK = 0.05  # scales are fitted from the widest posterior whose loss is that near to the least, relatively
CLEARLY = 2.0  # standard errors: a temperature that is not needed costs little, one that is missing much
WORTH = 2.0  # nats, of all examples together: what a likelihood-ratio test asks of one parameter, at 5 %
USUAL = 1e-3, 1e3  # α beyond are warned of
SUSPICIOUS = 100  # examples without a single error
FALLEN = 0.01  # accuracy


@dataclass(frozen=True)
class Candidate:
    """A way to predict, and the loss of each held-out example when it was not among those fitted to."""

    name: str
    losses: Array
    width: float = 0.0
    setting: float = 0.0  # of the output
    theta: Array | None = None  # log α of the scales, and that setting
    prior: Prior | None = None  # of θ, or of that setting alone; of what is fitted
    there: Pass | None = None  # at θ
    converged: bool = True

    @property
    def nll(self) -> float:
        return float(self.losses.mean())

    def better_than(self, other: Candidate, errors: float) -> bool:
        """By more than so many standard errors."""
        gain = other.losses - self.losses
        return float(gain.mean()) > errors * float(gain.std()) / math.sqrt(len(gain))


@dataclass(frozen=True)
class Adaptive:
    """As many scales as the held-out data support, found by cross-validation over ``folds``.

    First the width of the posterior, one factor for all variances of weights, with a temperature beside it (for a
    regression, the noise). Then log α of the layers under a Gaussian prior around their common value, of several
    standard deviations. What has the best cross-validated likelihood is taken, or what is simpler and nearly as good;
    and if the propagated variance does not raise that of the plain network with a temperature, it is left out.

    Choices are made on ``most`` to 2·``most`` examples, spread over the set; scales and temperature are then fitted to
    all.
    ``micro_batch`` examples at most go through the network together, and no fit takes more than ``steps`` steps.
    """

    folds: int = 5
    most: int = 2048
    micro_batch: int = 256
    steps: int = 15

    def __post_init__(self) -> None:
        if min(self.folds - 1, self.most, self.micro_batch, self.steps) < 1:
            raise CalibrationError(f"{self}: numbers must be positive, and folds at least 2")

    def fit(self, net: MomentNet, held_out: HeldOut, request: Request) -> MomentNet:
        folds = split_folds(held_out, self.folds, self.most, self.micro_batch)
        _check(folds, request, self.folds)
        with tqdm(desc="calibrate", unit=" passes", disable=request.silent, leave=False) as bar:
            return _Fit(self, net, held_out, folds, request, bar.update).run()


@dataclass
class _Fit:
    """Where a calibration stands."""

    procedure: Adaptive
    net: MomentNet
    held_out: HeldOut
    folds: Folds
    request: Request
    tick: Callable[[float], None]
    passes: float = 0.0

    def __post_init__(self) -> None:
        self.output, self.wide = OutputParameter(self.request.link), PosteriorWidth(self.net)

    def run(self) -> MomentNet:
        names = self.request.selected(self.net.scales)
        self.net.temperature = 1.0  # what an earlier calibration has found is found anew
        self._set(names, np.zeros(len(names)))
        widths = search(self.wide, self.folds, self.output, self._count, self.request.group)
        found = self._without_scales(widths)
        found += self._with_scales(widths, names, found[-1].nll)
        chosen = choose(found)
        self.wide.set(chosen.width)
        theta = chosen.theta
        if theta is None:
            theta, names = np.array([chosen.setting]), []
        if chosen.prior and (names or self.output.fitted) and self.folds.stride > 1:
            theta = self._refit(theta, chosen.prior, names, chosen.there)
            chosen = replace(chosen, setting=float(theta[-1]))
        self._set(names, theta)
        return self._finish(widths, found, chosen)

    def _without_scales(self, widths: Widths) -> list[Candidate]:
        folds, (width, setting) = self.folds.of_examples, widths.best()
        alone = float(widths.settings[widths.best(variance=False)[1]])
        without, beside = (Prior(math.inf, *each) for each in ((0.0, self.output.spread), (alone, self.output.shift)))
        fitted = Candidate("temperature", widths.cross_validated(folds, variance=False), setting=alone, prior=without)
        return [
            # A regression without its noise has no loss: there, nothing is simpler than the noise alone.
            Candidate("plain", widths.plain) if self.output.is_temperature else replace(fitted, name="plain"),
            fitted if self.output.is_temperature else replace(fitted, name="noise"),
            Candidate(
                "width", widths.cross_validated(folds), widths.widths[width], widths.settings[setting], prior=beside
            ),
        ]

    def _with_scales(self, widths: Widths, names: Sequence[str], least: float) -> Iterator[Candidate]:
        """Freer and freer, each from the last, until one is worse than another by as much as would be a gain."""
        width, start = widths.widest(SLACK)
        if not names or not width:
            return
        self.wide.set(widths.widths[width])
        objective = self._objective(names, self.request.cache)
        pieces, folds = self.folds.pieces, self.folds.of_pieces
        alone = float(widths.settings[widths.best(variance=False)[1]])
        theta, there = np.array([0.0] * len(names) + [widths.settings[start]]), None
        for spread in (each for each in SPREADS if self.folds.examples >= EXAMPLES * max(each, 1) * len(names)):
            prior = Prior(spread, alone, self.output.shift)
            found = fit(lambda x: objective.evaluate(pieces, x), theta, prior, folds, self.procedure.steps, there)
            theta, there = found.theta, found.there
            losses = objective.evaluate(pieces, *found.without, gradients=False).losses
            name, setting = f"scales ±{spread:g}", float(theta[-1])
            candidate = Candidate(
                name, losses, widths.widths[width], setting, theta, prior, there, converged=found.converged
            )
            yield candidate
            if candidate.nll > least + WORTH / len(losses):
                break
            least = min(least, candidate.nll)
        self._set(names, np.zeros(len(names)))

    def _refit(self, start: Array, prior: Prior, names: Sequence[str], some: Pass | None) -> Array:
        """θ fitted to all examples, from what was found on some of them, which tell how curved the loss is."""
        size, stride = self.procedure.micro_batch, self.folds.stride
        some = some or self._objective(names, 0).evaluate(self.folds.pieces, start)
        objective = self._objective(names, 0, stride)

        def evaluate(theta: Array, *, gradients: bool = True) -> Pass:
            pieces = (Piece(part, 0) for batch in self.held_out for part in parts(batch, size))
            return objective.evaluate(pieces, theta, gradients=gradients)

        return refine(evaluate, start, prior, stride * fisher(some.gradients))

    def _set(self, names: Sequence[str], theta: Array) -> None:
        self._objective(names, 0).set(theta)

    def _objective(self, names: Sequence[str], cache: int, weight: float = 1) -> ScaleObjective:
        """A pass counts as ``weight``."""
        return ScaleObjective(
            self.net, self.output, names, cache, lambda passes: self._count(weight * passes), self.request.group
        )

    def _count(self, passes: float) -> None:
        self.passes += passes
        self.tick(passes)

    def _finish(self, widths: Widths, found: list[Candidate], chosen: Candidate) -> MomentNet:
        if self.output.is_temperature:
            self.net.temperature = math.exp(chosen.setting)
        self.net.calibration = Calibration(
            chosen=chosen.name,
            nll={candidate.name: candidate.nll for candidate in found},
            width=chosen.width,
            noise_std=math.exp(chosen.setting) if self.output.fitted and not self.output.is_temperature else None,
            examples=self.folds.examples,
            converged=chosen.converged,
            passes=self.passes,
        )
        for warning in self._warnings(widths, chosen):
            warnings.warn(warning, stacklevel=outside())
        return self.net

    def _warnings(self, widths: Widths, chosen: Candidate) -> Iterator[str]:
        """Of what a user can do something about."""
        examples = self.folds.examples
        if widths.accuracy == 1 and examples >= SUSPICIOUS:
            yield f"not one of {examples} held-out examples is wrong: was the model trained on them? Then give others"
        if widths.accuracy is not None and chosen.width:
            accuracy = self.output.accuracy(forward(self.net, self.folds, self.request.group)) or 0.0
            if widths.accuracy - accuracy > max(FALLEN, 2 * math.sqrt(0.25 / examples)):
                yield (
                    f"accuracy falls from {widths.accuracy:.1%} to {accuracy:.1%} where the likelihood is best: "
                    "try scales=OUTPUT_ONLY, or another posterior"
                )
        if chosen.width and chosen.width >= 10**WIDEST:
            yield "the best width of the posterior is the largest that was tried: is its shape right for this model?"
        if odd := {n: a for n, a in self.net.scales.items() if not USUAL[0] <= a <= USUAL[1]}:
            listed = ", ".join(f"{name} ({alpha:.2g})" for name, alpha in odd.items())
            yield f"some scales are far from 1: {listed}. Their layers have next to no say; try scales=OUTPUT_ONLY"
        if not chosen.converged:
            yield f"the scales had not settled after {self.procedure.steps} steps: Adaptive(steps=…) takes more"


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The simplest whose held-out log-likelihood is the best, or less than that by two nats at most.

    Candidates come in the order of simplicity; of the two without variance, the plain one must be clearly better.
    """
    plain, temperature, *propagated = candidates
    rivals = [plain if plain.better_than(temperature, CLEARLY) else temperature, *propagated]
    most = min(each.nll for each in rivals) + WORTH / len(temperature.losses)
    return next(each for each in rivals if each.nll <= most)


def _check(found: Folds, request: Request, folds: int) -> None:
    if found.examples < 2 * folds:
        raise CalibrationError(
            f"{found.examples} held-out examples are too few for {folds} folds: give at least {2 * folds}"
        )
    targets = [piece.batch.target for piece in found.pieces]
    if isinstance(request.link, Categorical) and not targets[0].is_floating_point():
        labels = torch.cat([t[labelled(t)].unique() for t in targets]).unique()
        if len(labels) == 1:
            raise CalibrationError(
                f"all held-out examples have the label {int(labels)}: no probability can be fitted to that"
            )
