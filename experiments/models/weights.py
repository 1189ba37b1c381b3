"""Weights into a model, or an error that lists what does not fit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from experiments.faults import DataError
from varprop.errors import shortened

Tensors = dict[str, Tensor]


def fill(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy ``tensors`` into the model's parameters and buffers, all of them."""
    own = model.state_dict()
    given = {name: tensor for name, tensor in tensors.items() if name in own}
    # Counts the batches a norm has seen; no prediction depends on it, and files made elsewhere lack it.
    lacking = [name for name in own if name not in given and not name.endswith("num_batches_tracked")]
    problems = [f"lacks {name} {_shape(own[name])}" for name in lacking]
    problems += [f"has {name} {_shape(tensors[name])}, which the model lacks" for name in tensors if name not in own]
    problems += [
        f"{name} is {_shape(tensor)}, in the model {_shape(own[name])}"
        for name, tensor in given.items()
        if tensor.shape != own[name].shape
    ]
    if problems:
        raise DataError(
            f"{where} does not hold the weights of this {type(model).__name__}, but of another architecture: "
            f"{'; '.join(shortened(problems))}"
        )
    damaged = [name for name, tensor in given.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if damaged:
        raise DataError(f"{where} is damaged: NaN or infinite values in {', '.join(shortened(damaged))}")
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"
