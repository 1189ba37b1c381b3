"""Links: from the Gaussian of the logits to a prediction, and the loss that judges it.

A link is a value. Called with the moments of the logits it predicts; ``average`` predicts from the logits of several
networks; ``loss`` is the negative log-likelihood of each example under the same prediction. The loss of a position
whose label is −100 is 0.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from varprop.errors import InputError
from varprop.graph.captured import outside
from varprop.moments import Moments
from varprop.posterior.likelihood import SIGMOID, SOFTMAX, Likelihood, normal
from varprop.posterior.running import Running
from varprop.prediction.expectations import (
    MOST_SAMPLES,
    Condensed,
    by_rows,
    log_mean_sigmoid,
    mean_sigmoid,
    over_samples,
    pieces,
    sampled,
)
from varprop.prediction.logits import Logits, at_least_two, checked, widened
from varprop.prediction.prediction import Prediction, Regression
from varprop.prediction.targets import IGNORED, class_indices, class_scores, labelled, of_labelled, refuse_shape
from varprop.rules.quadrature import integrate

SUMS_TO_ONE = 1e-2
"""How far the sum of probabilities may be from 1: as in bfloat16."""
NEXT_TO_ONE = 0.999
"""From here on, 1 − p has too few digits."""
BEYOND_CHANCE = 16
"""From so many outputs on, it tells something that none of them lies outside [0, 1]."""
REMEDY = "let the model return its logits, or give MeanNetwork and MonteCarlo output=torch."


class Link(ABC):
    """From logits to a prediction."""

    @abstractmethod
    def __call__(self, logits: Moments) -> Prediction | Regression:
        """The prediction under Gaussian logits."""

    @abstractmethod
    def average(self, draws: Iterable[Tensor]) -> Prediction | Regression:
        """The prediction of several networks, equally likely, from the logits of each."""

    @abstractmethod
    def loss(self, logits: Moments, target: Tensor) -> Tensor:
        """The negative log-likelihood of each target, in the shape of the batch. Differentiable."""


class ClassLink(Link):
    """A link to probabilities of classes, along the last dimension."""

    @abstractmethod
    def squash(self, logits: Tensor) -> Tensor:
        """The probabilities of one network."""

    @abstractmethod
    def probs(self, logits: Moments) -> Tensor:
        """The expected probabilities."""

    @abstractmethod
    def log_likelihood(self, logits: Tensor, target: Tensor) -> Tensor:
        """Of each target, under one network."""

    @abstractmethod
    def expected_entropy(self, logits: Moments) -> Tensor:
        """The entropy of each network, on average: the uncertainty that would be left if the weights were known."""

    @abstractmethod
    def refuse_probabilities(self, outputs: Tensor) -> None:
        """What to say of outputs that all lie in [0, 1]."""

    def refuse_squashed(self, outputs: Tensor) -> None:
        """Outputs that have been through such a link already are no logits; few may lie in [0, 1] by chance."""
        low, high = outputs.detach().aminmax()
        if outputs.numel() >= BEYOND_CHANCE and 0 <= float(low) < float(high) <= 1:
            self.refuse_probabilities(outputs)

    def by_class(self, logits: Logits) -> Logits:
        """With the classes along the last dimension."""
        return logits

    def accepted(self, logits: Moments) -> Moments:
        """Checked."""
        return checked(logits, self.refuse_squashed)

    def __call__(self, logits: Moments) -> Prediction:
        logits = self.by_class(widened(logits))
        probs = self.probs(logits)  # before a look at the numbers, for which a GPU would have to be waited for
        return Prediction(probs, self.accepted(logits), self)

    def average(self, draws: Iterable[Tensor]) -> Prediction:
        seen = Running()
        for draw in draws:
            logits = self.accepted(self.by_class(widened(Moments(draw, torch.zeros_like(draw))))).mean
            seen.add({"logits": logits, "probs": self.squash(logits), **self._beside(logits)})
        found = seen.mean()
        return Prediction(found["probs"], _moments(seen), self, opposite=found.get("opposite"))

    def _beside(self, logits: Tensor) -> dict[str, Tensor]:
        """What else is averaged."""
        return {}


class Categorical(ClassLink):
    """One label out of C ≥ 2."""

    samples: int
    likelihood: ClassVar[Likelihood] = SOFTMAX

    def __post_init__(self) -> None:
        if not isinstance(self.samples, int) or not 1 <= self.samples <= MOST_SAMPLES:
            raise InputError(f"samples={self.samples!r}: there must be 1 to {MOST_SAMPLES}, a whole number")

    def squash(self, logits: Tensor) -> Tensor:
        return at_least_two(logits).softmax(-1)

    def refuse_probabilities(self, outputs: Tensor) -> None:
        """A softmax of probabilities is flat, whatever they are."""
        if bool(((outputs.sum(-1) - 1).abs() < SUMS_TO_ONE).all()):
            raise InputError(f"the outputs are probabilities, and the link applies a softmax to them: {REMEDY}log")

    @of_labelled
    def log_likelihood(self, logits: Tensor, target: Tensor) -> Tensor:
        target = class_indices(at_least_two(logits), target)
        return logits.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)

    def expected_entropy(self, logits: Moments) -> Tensor:
        def total(mean: Tensor, std: Tensor, points: Tensor) -> Tensor:
            probs = sampled(mean, std, points).softmax(-1)
            return torch.stack([torch.special.entr(probs).sum((1, 2)), probs[..., -1].sum(1)], -1)

        def entropy(few: Condensed) -> Tensor:
            found, last = over_samples(total, few.logits, self.samples).unbind(-1)
            return found + last * few.entropy_within

        return by_rows(entropy, checked(logits))


@dataclass(frozen=True)
class Softmax(Categorical):
    """Softmax averaged over ``samples`` fixed, evenly spread points of the logit Gaussian (the paper's output rule).

    Of more than 2,048 classes only the 256 likeliest are sampled, where the variance of the others does not matter.
    """

    samples: int = 256
    name: ClassVar[str] = "softmax"

    def probs(self, logits: Moments) -> Tensor:
        def total(mean: Tensor, std: Tensor, points: Tensor) -> Tensor:
            return sampled(mean, std, points).softmax(-1).sum(1)

        return by_rows(lambda few: few.unfolded(over_samples(total, few.logits, self.samples)), at_least_two(logits))

    @of_labelled
    def loss(self, logits: Moments, target: Tensor) -> Tensor:
        target = class_indices(logits.mean, target)

        def likelihood(mean: Tensor, std: Tensor, points: Tensor, target: Tensor) -> Tensor:
            draws = sampled(mean, std, points)
            chosen = draws.gather(-1, target[:, None, None].expand(-1, draws.shape[1], 1)).squeeze(-1)
            return chosen - draws.logsumexp(-1)

        def losses(few: Condensed, target: Tensor) -> Tensor:
            target, within = few.folded(target)
            found = []
            for points, mean, std, labels in pieces(few.logits, self.samples, target):
                parts = [
                    checkpoint(likelihood, mean, std, some, labels, use_reentrant=False, preserve_rng_state=False)
                    for some in points
                ]
                found.append(math.log(self.samples) - torch.cat(parts, 1).logsumexp(1))
            return torch.cat(found) + within

        return by_rows(losses, at_least_two(logits), target)


class MeanField(ClassLink):
    """The prediction of one network with the logits μ / √(1 + πv/8), in the place of an average over networks."""

    def probs(self, logits: Moments) -> Tensor:
        return self.squash(_shrunk(logits))

    def loss(self, logits: Moments, target: Tensor) -> Tensor:
        return -self.log_likelihood(_shrunk(logits), target)


@dataclass(frozen=True)
class MeanFieldSoftmax(MeanField, Categorical):
    """softmax(μ / √(1 + πv/8)): no sampling, a rough average."""

    samples: int = 256  # for the expected entropy, which has no such form
    name: ClassVar[str] = "mean-field softmax"


class Bernoulli(ClassLink):
    """Any number of labels out of C ≥ 1, each with a probability of its own."""

    likelihood: ClassVar[Likelihood] = SIGMOID

    def by_class(self, logits: Logits) -> Logits:
        """A model with one logit often drops its dimension: [N] is N examples, not one with N labels."""
        return tree_map(lambda x: x.unsqueeze(-1), logits) if len(logits.shape) == 1 else logits

    def squash(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def _beside(self, logits: Tensor) -> dict[str, Tensor]:
        return {"opposite": self.squash(-logits)}

    def loss_of_each(self, prediction: Prediction, target: Tensor) -> Tensor:
        """Of what was predicted, summed over labels; right also where a probability rounds to 1."""
        probs, logits, no = prediction.probs, prediction.logits, prediction.opposite
        no = self.probs(Moments(-logits.mean, logits.var)) if no is None else no
        no = torch.where(probs > NEXT_TO_ONE, no, 1 - probs)
        target, said = class_scores(probs, target)
        return -(said * (torch.xlogy(target, probs) + torch.xlogy(1 - target, no))).sum(-1)

    def refuse_probabilities(self, outputs: Tensor) -> None:
        """A warning, because logits may lie there too; those of an untrained model do, close together."""
        if bool((outputs < 0.5).any()) and bool((outputs > 0.5).any()):
            text = "all outputs are in [0, 1]: if they are probabilities, the link applies a second sigmoid to them"
            warnings.warn(f"{text}: {REMEDY}logit", stacklevel=outside())

    def log_likelihood(self, logits: Tensor, target: Tensor) -> Tensor:
        logits = self.by_class(logits)
        target, seen = class_scores(logits, target)
        return -F.binary_cross_entropy_with_logits(logits, target, seen, reduction="none").sum(-1)

    def expected_entropy(self, logits: Moments) -> Tensor:
        entropy = integrate(lambda x: F.softplus(x) - x * x.sigmoid(), checked(logits))
        return entropy.mean.sum(-1)


@dataclass(frozen=True)
class Sigmoid(Bernoulli):
    """Each probability is the mean of its sigmoid under the logit Gaussian, by quadrature; no samples."""

    name: ClassVar[str] = "sigmoid"

    def probs(self, logits: Moments) -> Tensor:
        return mean_sigmoid(*logits)

    def loss(self, logits: Moments, target: Tensor) -> Tensor:
        logits = self.by_class(logits)
        target, seen = class_scores(logits.mean, target)
        yes, no = (log_mean_sigmoid(sign * logits.mean, logits.var) for sign in (1, -1))
        return -(seen * (target * yes + (1 - target) * no)).sum(-1)


@dataclass(frozen=True)
class ProbitSigmoid(MeanField, Bernoulli):
    """σ(μ / √(1 + πv/8)): the usual shortcut."""

    name: ClassVar[str] = "probit sigmoid"


@dataclass(frozen=True)
class Gaussian(Link):
    """Regression: the outputs are what is predicted, observed with noise of standard deviation ``noise_std``.

    ``None`` is noise that is not known: ``calibrate`` fits it, and ``Propagated`` takes what was fitted.
    """

    noise_std: float | None = None
    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        if self.noise_std is not None and not 0 <= self.noise_std < math.inf:
            raise InputError(f"noise_std is a standard deviation, {self.noise_std} is not")

    @property
    def noise_var(self) -> float:
        """The variance of the noise; 0 where it is not known."""
        return (self.noise_std or 0.0) ** 2

    @property
    def likelihood(self) -> Likelihood:
        if not self.noise_std:
            raise InputError("outputs without noise have no Fisher information: give it, Gaussian(noise_std=...)")
        return normal(self.noise_std)

    def __call__(self, logits: Moments) -> Regression:
        logits = checked(logits)
        return Regression(logits.mean, logits.var + self.noise_var, logits)

    def average(self, draws: Iterable[Tensor]) -> Regression:
        outputs = Running()
        for draw in draws:
            outputs.add({"logits": draw})
        return self(_moments(outputs))

    def loss(self, logits: Moments, target: Tensor) -> Tensor:
        refuse_shape(logits.mean, target)
        if not target.is_floating_point() and not bool(labelled(target).all()):
            raise InputError(f"{IGNORED} marks what has no label; where it is a measured value, give targets.float()")
        var = logits.var + self.noise_var
        if not bool((var > 0).all()):
            raise InputError("some outputs have no variance at all: give the noise of the data, Gaussian(noise_std=…)")
        losses = 0.5 * (torch.log(2 * math.pi * var) + (target - logits.mean).square() / var)
        return losses.flatten(1).sum(1) if losses.ndim > 1 else losses


# --- arithmetic ------------------------------------------------------------------------------------------


def _moments(draws: Running) -> Moments:
    """Mean and variance over the draws; of a single one the variance is 0."""
    if not draws.count:
        raise InputError("there are no draws to average")
    correction = 1 if draws.count > 1 else 0
    return Moments(draws.mean()["logits"], draws.var(correction)["logits"])


def _shrunk(logits: Moments) -> Tensor:
    return logits.mean * torch.rsqrt(1 + math.pi / 8 * logits.var)
