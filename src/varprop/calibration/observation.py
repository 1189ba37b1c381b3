"""The noise of a regression's observations, fitted on held-out data to predictions that are there already."""

from __future__ import annotations

import copy
import math
from typing import Any, TypeVar

import torch

from varprop.errors import InputError
from varprop.metrics import gaussian_nll, rmse
from varprop.prediction.links import Gaussian
from varprop.prediction.predictors import Predictor, answers
from varprop.prediction.temperature import lowest

_Kind = TypeVar("_Kind", bound=Predictor)


def with_noise(predictor: _Kind, batches: Any) -> _Kind:
    """The same predictor, with the noise of least NLL on ``batches``: from 1 % of the RMSE to 100 times it."""
    if predictor.link != Gaussian():
        raise InputError(f"there is no noise to fit with the link {predictor.link}: it must be Gaussian()")
    parts = [(p.mean.flatten(), p.var.flatten(), target.flatten()) for p, target in answers(predictor, batches)]
    mean, var, target = (torch.cat(column).double().cpu() for column in zip(*parts, strict=True))
    size = float(rmse(mean, target))
    _, best = lowest(lambda u: float(gaussian_nll(mean, var + (size * math.exp(u)) ** 2, target))) if size else (0, 0)
    found = copy.copy(predictor)
    found.link = Gaussian(size * math.exp(best))
    return found
