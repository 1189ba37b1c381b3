"""What callbacks of trainers do at the end of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from varprop.calibration.calibrate import fit
from varprop.errors import InputError
from varprop.posterior import Posterior
from varprop.prediction.predictors import Propagated

ReadPosterior = Callable[[nn.Module, Any], Posterior]
"""From the model and its optimizer, e.g. ``Posterior.from_adam``."""


def fit_trained(
    model: nn.Module, optimizer: Any, held_out: Any, posterior: ReadPosterior | None, settings: dict[str, Any]
) -> Propagated:
    """``vp.fit`` of a model that was trained just now; it is left in evaluation mode."""
    if held_out is None:
        raise InputError("there are no held-out data to calibrate on: give the trainer some, or the callback held_out=")
    optimizer = getattr(optimizer, "optimizer", optimizer)  # of those that Accelerate or Lightning wrap
    if callable(put_back := getattr(optimizer, "eval", None)):  # IVON: the means in the place of the last draw
        put_back()
    found = None if posterior is None else posterior(model, optimizer)
    return fit(model.eval(), held_out, found, **settings)
