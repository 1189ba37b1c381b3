"""Models and posteriors from checkpoints that were written while training with IVON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.faults import DataError
from experiments.models.weights import Tensors, fill
from varprop.errors import PosteriorError
from varprop.posterior import Posterior

_MODEL_KEYS = ("model", "state_dict", "model_state_dict")
_OPTIMIZER_KEYS = ("optimizer", "optim", "optimizer_state_dict")


def ivon_checkpoint(model: nn.Module, path: Path) -> tuple[nn.Module, Posterior]:
    """The model with the weights and norms' statistics of a checkpoint, in eval mode, and its IVON posterior.

    ``path`` is what ``torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)`` wrote,
    with ivon-opt's optimizer or varprop's; ``state_dict`` and other usual keys are known too. Only tensors and plain
    values are read from it: anything that could run code is refused.
    """
    checkpoint = _loaded(path)
    weights = _entry(checkpoint, _MODEL_KEYS, path, "the model's weights")
    optimizer = _entry(checkpoint, _OPTIMIZER_KEYS, path, "the optimizer's state")
    tensors = _plain(weights, path)
    fill(model, tensors, str(path))
    try:
        return model.eval(), Posterior.from_ivon(model, optimizer)
    except PosteriorError as error:
        raise DataError(f"{path}: {error}") from error


def _loaded(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 (whatever a damaged or hostile file brings about)
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is not a checkpoint of tensors and plain values: {first}") from None
    if not isinstance(content, Mapping):
        raise DataError(f"{path} holds a {type(content).__name__}, not a dict with a model and an optimizer")
    return content


def _entry(checkpoint: Mapping[str, Any], keys: Sequence[str], path: Path, what: str) -> Mapping[str, Any]:
    for key in keys:
        if isinstance(checkpoint.get(key), Mapping):
            return checkpoint[key]
    there = ", ".join(map(repr, list(checkpoint)[:8]))
    raise DataError(f"{path} is without {what}: looked for {', '.join(map(repr, keys))}, and it holds {there}")


def _plain(weights: Mapping[str, Any], path: Path) -> Tensors:
    """Without what DistributedDataParallel and torch.compile put in front of the names."""
    tensors: Tensors = {}
    for key, tensor in weights.items():
        name = key
        while name.startswith(("module.", "_orig_mod.")):
            name = name.partition(".")[2]
        if not isinstance(tensor, Tensor):
            raise DataError(f"{path}: {key!r} is a {type(tensor).__name__}, not a tensor")
        tensors[name] = tensor
    return tensors
