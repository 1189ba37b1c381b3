"""Models and posteriors from checkpoints that were written while training with IVON."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from experiments.exceptions import DataError
from experiments.models.weights import entry, fill, model_weights, read_checkpoint
from varprop.errors import PosteriorError
from varprop.posterior import Posterior

_OPTIMIZER_KEYS = ("optimizer", "optim", "optimizer_state_dict")


def ivon_checkpoint(model: nn.Module, path: Path) -> tuple[nn.Module, Posterior]:
    """The model with the weights and norms' statistics of a checkpoint, in eval mode, and its IVON posterior.

    ``path`` is what ``torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)`` wrote,
    with ivon-opt's optimizer or varprop's; ``state_dict`` and other usual keys are known too. Only tensors and plain
    values are read from it: anything that could run code is refused.
    """
    checkpoint = read_checkpoint(path)
    optimizer = entry(checkpoint, _OPTIMIZER_KEYS, path, "the optimizer's state")
    tensors = model_weights(checkpoint, path)
    fill(model, tensors, str(path))
    try:
        return model.eval(), Posterior.from_ivon(model, optimizer)
    except PosteriorError as error:
        raise DataError(f"{path}: {error}") from error
