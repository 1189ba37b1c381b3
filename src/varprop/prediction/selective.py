"""Answer or abstain, with a guarantee on the risk of what is answered."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import register_dataclass

from varprop.errors import GuaranteeError, InputError
from varprop.prediction.guarantee import Guarantee, guarantee
from varprop.prediction.prediction import BatchOutput, Prediction
from varprop.prediction.predictors import UNLABELLED, Predictor, Wrapper, predict_batches

ABSTAIN = -1
"""The label of an example that is not answered."""
CONFIDENCE = attrgetter("confidence")


@dataclass(frozen=True)
class Decision(BatchOutput):
    """A prediction, and which of its examples are answered."""

    prediction: Prediction
    answered: Tensor

    @property
    def label(self) -> Tensor:
        """The labels answered; ``ABSTAIN`` (−1) elsewhere."""
        return torch.where(self.answered, self.prediction.label, ABSTAIN)

    @property
    def names(self) -> list[Any]:
        """The names of the labels answered; ``None`` elsewhere."""
        return self.prediction.names_of(self.label)

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.prediction.classes

    @property
    def probs(self) -> Tensor:
        return self.prediction.probs

    @property
    def confidence(self) -> Tensor:
        return self.prediction.confidence

    @property
    def var(self) -> Tensor:
        return self.prediction.var

    def columns(self) -> dict[str, Any]:
        label = self.prediction.label_column(self.label)
        return self.prediction.columns() | {"label": label, "answered": self.answered.flatten().cpu().numpy()}

    def judged(self, target: Tensor) -> Tensor:
        return self.prediction.judged(target)

    @property
    def _positions(self) -> tuple[int, ...]:
        return self.answered.shape


register_dataclass(Decision)


class Selective(Wrapper):
    """A predictor that may abstain: ``fit`` finds the threshold on its confidence, calling it applies the threshold.

    ``score`` is the confidence to go by, a function of a prediction; by default the probability of the label.
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        score: Callable[[Prediction], Tensor] = CONFIDENCE,
        guarantee: Guarantee | None = None,
    ) -> None:
        if not isinstance(predictor, Predictor):
            raise InputError(f"Selective takes a predictor, e.g. Propagated(net), not a {type(predictor).__name__}")
        if isinstance(predictor, Selective):
            raise InputError("this predictor abstains already: give the one it was made from, selective.predictor")
        super().__init__(predictor)
        self.score, self.guarantee = score, guarantee

    def settings(self) -> dict[str, Any]:
        promise = None if self.guarantee is None else asdict(self.guarantee)
        if promise and promise["threshold"] == -math.inf:
            promise["threshold"] = None  # a number that JSON does not have
        named = None if self.score is CONFIDENCE else getattr(self.score, "__qualname__", repr(self.score))
        return {"guarantee": promise, "score": named}

    def fit(self, batches: Any, risk: float, confidence: float = 0.95) -> Selective:
        """A predictor whose answers are wrong at a rate of at most ``risk``, with probability ``confidence``.

        ``batches`` must be new to model, posterior and calibration, and drawn like what is to come. Raises
        ``GuaranteeError`` if no threshold can promise that risk.
        """
        scores, correctness = [], []
        for prediction, target in predict_batches(self.predictor, batches):
            if not isinstance(prediction, Prediction):
                raise InputError("a guarantee needs answers that are right or wrong: regression has no such risk")
            prediction, target = prediction.drop_unlabelled(target)
            scores.append(self.score(prediction).flatten())
            correctness.append(prediction.correctness(target).flatten())
        if not sum(map(len, scores)):
            raise InputError(UNLABELLED)
        found = guarantee(torch.cat(scores), torch.cat(correctness), risk, level=confidence)
        return Selective(self.predictor, score=self.score, guarantee=found)

    def __call__(self, *args: Any, **kwargs: Any) -> Decision:
        if self.guarantee is None:
            raise GuaranteeError("there is no threshold yet: Selective(predictor).fit(batches, risk=0.01)")
        prediction = self.predictor(*args, **kwargs)
        # In float64, because a threshold just above a float32 would be rounded down to it.
        return Decision(prediction, self.score(prediction).double() >= self.guarantee.threshold)

    def __repr__(self) -> str:
        return f"Selective({self.predictor}, guarantee={self.guarantee})"
