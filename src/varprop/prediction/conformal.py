"""Intervals of a regression that hold the observation at least as often as they say, for any number of examples.

Split conformal prediction (Papadopoulos, Proedrou, Vovk, Gammerman 2002; Lei, G'Sell, Rinaldo, Tibshirani, Wasserman:
arXiv 1604.04173), with residuals in standard deviations of the prediction (their section 5.2):

    sᵢ = |yᵢ − μ(xᵢ)| / σ(xᵢ),  i = 1 … n, on examples that are new to model and calibration
    q  = the k-th smallest of them, k = ⌈(n + 1) level⌉
    interval: μ(x) ± q σ(x)

If the n examples and the next one are exchangeable, the rank of the next one's s is uniform, so P(s ≤ q) ≥ k/(n + 1) ≥
level, whatever μ and σ are; equal residuals make it more. Without ties it is at most level + 1/(n + 1). The probability
is over the examples and the next one together. For k > n no finite interval would do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor

from varprop.errors import GuaranteeError, InputError
from varprop.prediction.links import Gaussian
from varprop.prediction.prediction import Regression
from varprop.prediction.predictors import Predictor, Wrapper, predict_batches
from varprop.prediction.targets import refuse_shape


def conformal_reach(residuals: Tensor, level: float) -> float:
    """How many standard deviations an interval of this level must reach; the smallest residuals come first."""
    count, wanted = len(residuals), Fraction(repr(level))  # 0.9 is meant, not the float next to it
    rank = math.ceil((count + 1) * wanted)
    if rank > count:
        needed = math.ceil(wanted / (1 - wanted))
        raise GuaranteeError(
            f"{count} examples give no interval of level {level:g}: give at least {needed}, or lower the level"
        )
    return float(residuals[rank - 1])


class Conformal(Wrapper):
    """A regression whose intervals hold at any level: ``Conformal(predictor).fit(batches)(x).interval(0.9)``.

    Of several outputs the interval holds for all of them at once.
    """

    def __init__(self, predictor: Predictor, residuals: Tensor | Sequence[float] | None = None) -> None:
        if not isinstance(predictor, Predictor) or not isinstance(predictor.link, Gaussian):
            raise InputError(
                f"intervals need a regression, not a {predictor}: Propagated(net, link=vp.links.Gaussian()); "
                "for classes, Selective answers or abstains"
            )
        super().__init__(predictor)
        # Of the examples it was fitted to, in standard deviations, the smallest first.
        self.residuals = None if residuals is None else torch.as_tensor(residuals, dtype=torch.float64)

    def settings(self) -> dict[str, Any]:
        return {"residuals": None if self.residuals is None else self.residuals.tolist()}

    def fit(self, batches: Any) -> Conformal:
        """A predictor with intervals after the residuals of ``batches``.

        They must be new to model, posterior and calibration, and drawn like what is to come.
        """
        found = [_residuals(prediction, target) for prediction, target in predict_batches(self.predictor, batches)]
        return Conformal(self.predictor, torch.cat(found).sort().values)

    def __call__(self, *args: Any, **kwargs: Any) -> Regression:
        if self.residuals is None:
            raise GuaranteeError("there are no intervals yet: Conformal(predictor).fit(batches)")
        return replace(self.predictor(*args, **kwargs), reach=partial(conformal_reach, self.residuals))

    def __repr__(self) -> str:
        fitted = "not fitted" if self.residuals is None else f"{len(self.residuals)} examples"
        return f"Conformal({self.predictor}, {fitted})"


def _residuals(prediction: Regression, target: Tensor) -> Tensor:
    """The largest of each example's outputs; infinite where no variance explains an error."""
    refuse_shape(prediction.mean, target)
    error, std = (target.double() - prediction.mean.double()).abs().cpu(), prediction.std.double().cpu()
    if bool(error.isnan().any()):
        raise InputError("some targets are NaN: leave those examples out")
    ratio = torch.where(error > 0, error / std, 0.0)
    return ratio.reshape(len(ratio), -1).amax(1)
