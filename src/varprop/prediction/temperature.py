"""One number at the output, chosen on held-out data: the temperature of logits, or the noise of a regression."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from varprop.batch import read
from varprop.errors import InputError
from varprop.graph.captured import outside
from varprop.metrics import gaussian_nll, rmse
from varprop.moments import Moments
from varprop.prediction.links import ClassLink, Gaussian
from varprop.prediction.prediction import Prediction, Regression
from varprop.prediction.predictors import GaussianPredictor, Predictor, Wrapper, predict_batches
from varprop.prediction.targets import labelled

LOWEST, HIGHEST = 1e-2, 1e2
_log = logging.getLogger(__name__)
_Predictor = TypeVar("_Predictor", bound=Predictor)


@dataclass(frozen=True)
class Fit:
    """How the temperature was found: NLL per label of the held-out data, without it and with it."""

    before: float
    after: float
    examples: int


class TemperatureScaled(Wrapper, GaussianPredictor):
    """Another predictor with its logits divided by ``temperature``. ``fit`` returns one with the best temperature."""

    link: ClassLink

    def __init__(self, predictor: Any, temperature: float = 1.0, *, fitted: Fit | None = None) -> None:
        wanted = "TemperatureScaled(MeanNetwork(model)), or a Propagated of classes"
        if isinstance(predictor, Predictor) and not isinstance(predictor.link, ClassLink):
            raise InputError(
                f"a temperature divides logits of classes, and {predictor} is a regression: calibrate() fits its "
                f"noise. For classes: {wanted}"
            )
        if not isinstance(predictor, GaussianPredictor):
            raise InputError(f"there are no logits to divide in a {predictor}: {wanted}")
        if not 0 < temperature < math.inf:
            raise InputError(f"a temperature is positive and finite, {temperature} is not")
        super().__init__(predictor)
        self.temperature, self.fitted = temperature, fitted

    def settings(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "fitted": asdict(self.fitted) if self.fitted else None}

    def logits(self, *args: Any, **kwargs: Any) -> Moments:
        return self.predictor.logits(*args, **kwargs).divided_by(self.temperature)

    def decide(self, logits: Moments) -> Prediction | Regression:
        return self.predictor.decide(logits)

    def loss(self, logits: Moments, target: Tensor) -> Tensor:
        return self.predictor.loss(logits, target)

    @torch.no_grad()
    def fit(self, batches: Any) -> TemperatureScaled:
        """A predictor with the temperature of least NLL on ``batches``; the network runs once.

        The search covers temperatures from 0.01 to 100. One that does not lower the NLL is not taken.
        """
        kept = []
        for batch in read(batches, one=self.takes_one):
            batch = batch.to(self.device)
            logits = self.predictor.logits(*batch.args, **batch.kwargs)
            self.link.accepted(self.link.by_class(logits))
            kept.append((Moments(*(x.double() for x in logits)), batch.target))
        count = sum(_labels(self.predictor.loss(logits, target), target) for logits, target in kept)
        if not count:
            raise InputError("no held-out example has a label: all are -100")

        def nll(log_temperature: float) -> float:
            temperature = math.exp(log_temperature)
            losses = [self.predictor.loss(logits.divided_by(temperature), target).sum() for logits, target in kept]
            return float(torch.stack(losses).sum()) / count

        before = nll(0.0)
        if not math.isfinite(before):
            raise InputError(f"the NLL of the held-out data is {before}: the logits are not finite")
        after, best = min((before, 0.0), minimize(nll))
        temperature = math.exp(best)
        if not 1.05 * LOWEST < temperature < HIGHEST / 1.05:
            warnings.warn(
                f"the best temperature is at the end of the range searched, {temperature:.3g}: "
                "the held-out labels are all right, or as good as random",
                stacklevel=outside(),
            )
        _log.info("temperature %.4f: NLL %.4f -> %.4f on %d examples", temperature, before, after, count)
        return TemperatureScaled(self.predictor, temperature, fitted=Fit(before, after, count))

    def __repr__(self) -> str:
        return f"TemperatureScaled({self.predictor}, temperature={self.temperature:.4g})"


def _labels(losses: Tensor, target: Tensor) -> int:
    """How many losses there are: one for each class index that is given, or for each set of labels."""
    return int(labelled(target).reshape(*losses.shape, -1).any(-1).sum())


def with_noise(predictor: _Predictor, batches: Any) -> _Predictor:
    """A regression with the noise of least NLL on ``batches``: from 1 % of the RMSE to 100 times it."""
    if predictor.link != Gaussian():
        raise InputError(f"there is no noise to fit with the link {predictor.link}: it must be Gaussian()")
    parts = [(p.mean.flatten(), p.var.flatten(), target.flatten()) for p, target in predict_batches(predictor, batches)]
    mean, var, target = (torch.cat(column).double().cpu() for column in zip(*parts, strict=True))
    size = float(rmse(mean, target))
    _, best = minimize(lambda u: float(gaussian_nll(mean, var + (size * math.exp(u)) ** 2, target))) if size else (0, 0)
    found = copy.copy(predictor)
    found.link = Gaussian(size * math.exp(best))
    return found


def minimize(function: Callable[[float], float], points: int = 17) -> tuple[float, float]:
    """The least value of a function of log T and where it is: the best of a grid, then Brent's method between its
    neighbours.

    The NLL of a mean network has one minimum in 1/T, so this finds it. Gradient methods, used elsewhere, may not
    arrive and do not say so.
    """
    from scipy.optimize import minimize_scalar  # here, because it takes long to import

    grid = np.linspace(math.log(LOWEST), math.log(HIGHEST), points)
    best = int(np.nanargmin([function(x) for x in grid]))
    around = grid[max(0, best - 1)], grid[min(points - 1, best + 1)]
    found = minimize_scalar(function, bounds=around, method="bounded", options={"xatol": 1e-6})
    return min((float(found.fun), float(found.x)), (function(grid[best]), float(grid[best])))
