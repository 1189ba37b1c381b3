"""What a predictor returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from varprop.errors import InputError
from varprop.moments import Moments
from varprop.prediction.targets import refuse_unlabelled

if TYPE_CHECKING:
    from varprop.prediction.links import ClassLink


@dataclass(frozen=True)
class Prediction:
    """Probabilities of classes (along the last dimension), and the logits they come from.

    Of one logit (``C = 1``, a sigmoid) the label is 1 or 0 and the confidence the larger of p and 1 − p.
    """

    probs: Tensor
    logits: Moments
    link: ClassLink

    @property
    def label(self) -> Tensor:
        """The most probable class."""
        if self.probs.shape[-1] == 1:
            return (self.probs[..., 0] >= 0.5).long()
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the label."""
        if self.probs.shape[-1] == 1:
            return torch.maximum(self.probs, 1 - self.probs)[..., 0]
        return self.probs.amax(-1)

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
        if target.shape != self.probs.shape:
            raise InputError(f"scores of shape {list(target.shape)} for probabilities {list(self.probs.shape)}")
        if self.probs.shape[-1] == 1:
            return torch.where(label == 1, target[..., 0], 1 - target[..., 0])
        return target.gather(-1, label.unsqueeze(-1)).squeeze(-1)

    def __len__(self) -> int:
        return len(self.probs)


@dataclass(frozen=True)
class Regression:
    """A Gaussian for each output: ``mean``, and ``var`` with the observation noise in it."""

    mean: Tensor
    var: Tensor
    logits: Moments

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
        reach = self.std * torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64)).item()
        return self.mean - reach, self.mean + reach

    def __len__(self) -> int:
        return len(self.mean)
