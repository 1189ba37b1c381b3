"""For Hugging Face's Trainer: a calibrated predictor at the end of training."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from varprop.integrations.after_training import ReadPosterior, fit_trained
from varprop.prediction.predictors import Propagated


class FitAtTrainEnd(TrainerCallback):
    """Calls ``vp.fit`` when training has ended; ``predictor`` is what it gave.

    ``held_out`` are batches to calibrate on, by default those the trainer evaluates on. ``posterior`` reads one from
    model and optimizer (``vp.Posterior.from_adam``, ``vp.Posterior.from_ivon``), isotropic without it. The trainer's
    tokenizer is kept. ``settings`` are those of ``vp.fit``.
    """

    def __init__(self, held_out: Any = None, *, posterior: ReadPosterior | None = None, **settings: Any) -> None:
        self.held_out, self.posterior, self.settings = held_out, posterior, settings
        self.predictor: Propagated | None = None

    def on_train_end(self, args: Any, state: Any, control: Any, **there: Any) -> None:
        held_out = there.get("eval_dataloader") if self.held_out is None else self.held_out
        settings = {"processor": there.get("processing_class"), **self.settings}
        if state.is_world_process_zero:
            self.predictor = fit_trained(there["model"], there.get("optimizer"), held_out, self.posterior, settings)
