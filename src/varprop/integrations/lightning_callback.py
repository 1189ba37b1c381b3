"""For Lightning's Trainer: a calibrated predictor at the end of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning import Callback
from torch import nn

from varprop.integrations.after_training import ReadPosterior, fit_trained
from varprop.prediction.predictors import Propagated


class FitAtFitEnd(Callback):
    """Calls ``vp.fit`` when training has ended; ``predictor`` is what it gave.

    ``network`` finds the network in the module, where that is not the module itself: ``lambda module: module.vit``.
    ``held_out`` are batches to calibrate on, by default those the trainer validates on. ``posterior`` reads one from
    network and optimizer (``vp.Posterior.from_adam``, ``vp.Posterior.from_ivon``), isotropic without it. ``settings``
    are those of ``vp.fit``.
    """

    def __init__(
        self,
        held_out: Any = None,
        *,
        network: Callable[[Any], nn.Module] = lambda module: module,
        posterior: ReadPosterior | None = None,
        **settings: Any,
    ) -> None:
        self.held_out, self.network, self.posterior, self.settings = held_out, network, posterior, settings
        self.predictor: Propagated | None = None

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        held_out = trainer.val_dataloaders if self.held_out is None else self.held_out
        if trainer.is_global_zero:
            optimizer = next(iter(trainer.optimizers), None)
            self.predictor = fit_trained(
                self.network(pl_module), optimizer, held_out, self.posterior, {"progress": False, **self.settings}
            )
