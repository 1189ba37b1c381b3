"""Several labels of one example, each decided on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from varprop.errors import InputError
from varprop.metrics import best_f1_threshold
from varprop.moments import Moments
from varprop.prediction.links import Bernoulli
from varprop.prediction.prediction import Prediction
from varprop.prediction.predictors import Predictor, Wrapper, predict_batches
from varprop.prediction.targets import labelled, refuse_shape


class PerLabel(Wrapper):
    """A yes or no for each label: yes where its probability reaches its threshold, ½ unless given or fitted.

    The prediction has a label, a confidence and a correctness of shape [examples, labels], so that ``evaluate`` judges
    every decision, and ``Selective`` abstains from single ones. Targets are [examples, labels]: 1, 0, or −100 where
    nobody said.
    """

    def __init__(self, predictor: Predictor, thresholds: Sequence[float] | None = None) -> None:
        if not isinstance(predictor, Predictor) or not isinstance(predictor.link, Bernoulli):
            raise InputError(
                f"several labels need a sigmoid, which {predictor} has not: Propagated(net, link=vp.links.Sigmoid())"
            )
        if thresholds is not None and not all(0 <= threshold <= 1 for threshold in thresholds):
            raise InputError(f"a threshold on a probability lies in [0, 1], of {list(thresholds)} some do not")
        super().__init__(predictor)
        self.thresholds = None if thresholds is None else tuple(map(float, thresholds))

    def settings(self) -> dict[str, Any]:
        return {"thresholds": self.thresholds}

    def fit(self, batches: Any) -> PerLabel:
        """A predictor with the threshold for each label that has the largest F₁ on ``batches``.

        A label that none of them has keeps ½.
        """
        probs, targets = [], []
        for prediction, target in predict_batches(self.predictor, batches):
            refuse_shape(prediction.probs, target)
            probs.append(prediction.probs.flatten(0, -2).cpu())
            targets.append(target.flatten(0, -2).cpu())
        columns = zip(torch.cat(probs).T, torch.cat(targets).T, strict=True)
        return PerLabel(self.predictor, [best_f1_threshold(p[labelled(t)], t[labelled(t)]) for p, t in columns])

    def __call__(self, *args: Any, **kwargs: Any) -> Prediction:
        found = self.predictor(*args, **kwargs)
        probs, logits = found.probs.unsqueeze(-1), Moments(*(x.unsqueeze(-1) for x in found.logits))
        thresholds = None
        if self.thresholds is not None:
            if len(self.thresholds) != found.probs.shape[-1]:
                raise InputError(f"{len(self.thresholds)} thresholds for {found.probs.shape[-1]} labels")
            thresholds = found.probs.new_tensor(self.thresholds).expand_as(found.probs)
        return replace(found, probs=probs, logits=logits, classes=None, threshold=thresholds)

    def __repr__(self) -> str:
        return f"PerLabel({self.predictor}, thresholds={self.thresholds})"
