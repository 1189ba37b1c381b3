"""What a predictor returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from varprop.errors import InputError
from varprop.moments import Moments
from varprop.prediction.answer import Answer
from varprop.prediction.targets import refuse_unlabelled

if TYPE_CHECKING:
    from varprop.prediction.links import ClassLink


@dataclass(frozen=True)
class Prediction(Answer):
    """Probabilities of classes (along the last dimension), and the logits they come from.

    Of one logit (``C = 1``, a sigmoid) the label is 1 or 0, by whether p reaches ``threshold`` (½), and the confidence
    p or 1 − p.
    """

    probs: Tensor
    logits: Moments
    link: ClassLink
    classes: tuple[str, ...] | None = None
    """The names of the classes, where the model has some (``config.id2label``) or they were given."""
    threshold: Tensor | None = None
    """Of each answer, where it is another than ½."""

    @property
    def label(self) -> Tensor:
        """The most probable class."""
        if self.probs.shape[-1] == 1:
            return (self.probs[..., 0] >= (0.5 if self.threshold is None else self.threshold)).long()
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the label."""
        if self.probs.shape[-1] == 1:
            return torch.where(self.label == 1, self.probs[..., 0], 1 - self.probs[..., 0])
        return self.probs.amax(-1)

    @property
    def var(self) -> Tensor:
        """The variance of each logit that comes from the weights."""
        return self.logits.var

    @property
    def names(self) -> list[Any]:
        """The label of each example by name."""
        return self.names_of(self.label)

    def names_of(self, label: Tensor) -> list[Any]:
        """Class indices by name, ``None`` for those below 0."""
        if self.classes is None:
            raise InputError("the classes have no names: give them, vp.fit(model, held_out, classes=[...])")
        return _named(label.tolist(), self.classes)

    def columns(self) -> dict[str, Any]:
        count = self.probs.shape[-1]
        names = self.classes or tuple(map(str, range(max(2, count))))
        shown = names[1:] if count == 1 else names
        return {
            "label": self.label_column(self.label),
            "confidence": self.confidence.flatten().cpu().numpy(),
            **{f"p({name})": p.cpu().numpy() for name, p in zip(shown, self.probs.reshape(-1, count).T, strict=True)},
        }

    def label_column(self, label: Tensor) -> Any:
        """Names where there are some, else indices."""
        return label.flatten().cpu().numpy() if self.classes is None else self.names_of(label.flatten())

    @property
    def _places(self) -> tuple[int, ...]:
        return self.probs.shape[:-1]

    def correctness(self, target: Tensor) -> Tensor:
        """How right the labels are, in [0, 1]: 0 or 1 for class indices; for a score per class, the label's score."""
        label = self.label
        if not target.is_floating_point():
            if target.shape == self.probs.shape and self.probs.shape[-1] == 1:
                target = target[..., 0]
            if target.shape != label.shape:
                expected = f"{list(label.shape)}, or floats of {list(self.probs.shape)} (a score per class)"
                raise InputError(f"labels of shape {list(target.shape)}, where class indices would be {expected}")
            refuse_unlabelled(target)
            return (label == target).to(self.probs.dtype)
        if self.probs.shape[-1] == 1 and target.shape == label.shape:
            target = target.unsqueeze(-1)
        if target.shape != self.probs.shape:
            raise InputError(
                f"scores of shape {list(target.shape)} for probabilities {list(self.probs.shape)}: class indices are "
                "integers, and numbers that were measured need a regression, link=vp.links.Gaussian()"
            )
        if self.probs.shape[-1] == 1:
            return torch.where(label == 1, target[..., 0], 1 - target[..., 0])
        return target.gather(-1, label.unsqueeze(-1)).squeeze(-1)


def normal_reach(level: float) -> float:
    """Of the interval around the mean of a normal distribution that holds ``level`` of it, in standard deviations."""
    return NormalDist().inv_cdf(0.5 + level / 2)


@dataclass(frozen=True)
class Regression(Answer):
    """A Gaussian for each output: ``mean``, and ``var`` with the observation noise in it."""

    mean: Tensor
    var: Tensor
    logits: Moments
    reach: Callable[[float], float] = normal_reach
    """From a level to how far an interval reaches, in standard deviations: ``Conformal`` gives another."""

    @property
    def std(self) -> Tensor:
        return self.var.sqrt()

    @property
    def confidence(self) -> Tensor:
        """Minus the standard deviation; over several outputs, minus its root mean square."""
        return -self.var.flatten(1).mean(1).sqrt() if self.var.ndim > 1 else -self.std

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Bounds between which the observation lies with probability ``level``."""
        if not 0 < level < 1:
            raise InputError(f"a level lies between 0 and 1, {level} does not")
        reach = self.std * self.reach(level)
        return self.mean - reach, self.mean + reach

    def columns(self) -> dict[str, Any]:
        count = self.mean[0].numel()
        found: dict[str, Any] = {}
        for name, values in (("mean", self.mean), ("std", self.std)):
            flat = values.reshape(len(self), count).T.cpu().numpy()
            found |= {name if count == 1 else f"{name}({i})": column for i, column in enumerate(flat)}
        return found

    @property
    def _places(self) -> tuple[int, ...]:
        return self.mean.shape[:1]


def _named(label: Any, classes: tuple[str, ...]) -> Any:
    """Indices by name, in lists as deep as they come; below 0 there is none."""
    if isinstance(label, list):
        return [_named(each, classes) for each in label]
    return classes[label] if label >= 0 else None
