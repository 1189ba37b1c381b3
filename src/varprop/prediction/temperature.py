"""Temperature scaling: logits divided by one number, chosen on held-out data."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varprop.batch import read
from varprop.errors import InputError
from varprop.moments import Moments
from varprop.prediction.links import ClassLink
from varprop.prediction.prediction import Prediction, Regression
from varprop.prediction.predictors import GaussianPredictor, Predictor, Wrapper
from varprop.prediction.targets import labelled

LOWEST, HIGHEST = 1e-2, 1e2
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """How the temperature was found: NLL per label of the held-out data, without it and with it."""

    before: float
    after: float
    examples: int


class TemperatureScaled(Wrapper, GaussianPredictor):
    """Another predictor with its logits divided by ``temperature``. ``fit`` returns one with the best temperature."""

    def __init__(self, predictor: Any, temperature: float = 1.0, *, fitted: Fit | None = None) -> None:
        if not isinstance(predictor, GaussianPredictor) or not isinstance(predictor.link, ClassLink):
            wanted = "TemperatureScaled(MeanNetwork(model)), or a Propagated of classes"
            if isinstance(predictor, Predictor) and not isinstance(predictor.link, ClassLink):
                raise InputError(
                    f"a temperature divides logits of classes, and {predictor} is a regression: calibrate() fits its "
                    f"noise. For classes: {wanted}"
                )
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
        for batch in read(batches):
            batch = batch.to(self.device)
            logits = self.predictor.logits(*batch.args, **batch.kwargs)
            kept.append((Moments(*(x.double() for x in logits)), batch.target))
        count = sum(_labels(logits, target) for logits, target in kept)
        if not count:
            raise InputError("no held-out example has a label: all are -100")

        def nll(log_temperature: float) -> float:
            temperature = math.exp(log_temperature)
            losses = [self.predictor.loss(logits.divided_by(temperature), target).sum() for logits, target in kept]
            return float(torch.stack(losses).sum()) / count

        before = nll(0.0)
        if not math.isfinite(before):
            raise InputError(f"the NLL of the held-out data is {before}: the logits are not finite")
        after, best = min((before, 0.0), lowest(nll))
        temperature = math.exp(best)
        if not 1.05 * LOWEST < temperature < HIGHEST / 1.05:
            warnings.warn(
                f"the best temperature is at the end of the range searched, {temperature:.3g}: "
                "the held-out labels are all right, or as good as random",
                stacklevel=2,
            )
        _log.info("temperature %.4f: NLL %.4f -> %.4f on %d examples", temperature, before, after, count)
        return TemperatureScaled(self.predictor, temperature, fitted=Fit(before, after, count))

    def __repr__(self) -> str:
        return f"TemperatureScaled({self.predictor}, temperature={self.temperature:.4g})"


def _labels(logits: Moments, target: Tensor) -> int:
    """How many losses there are: one for each class index that is given, or for each set of labels."""
    positions = logits.shape[:-1]
    return int(labelled(target).sum()) if target.shape == positions else positions.numel()


def lowest(function: Callable[[float], float], points: int = 17) -> tuple[float, float]:
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
