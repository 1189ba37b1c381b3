"""Weights into a model, or an error that lists what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from experiments.exceptions import DataError
from varprop.errors import PosteriorError, shortened
from varprop.posterior import Posterior

Tensors = dict[str, Tensor]
Model = TypeVar("Model", bound=nn.Module)
_MODEL_KEYS = ("model", "state_dict", "model_state_dict")
_OPTIMIZER_KEYS = ("optimizer", "optim", "optimizer_state_dict")


def seeded(seed: int, make: Callable[..., Model], *args: Any, **options: Any) -> Model:
    """What ``make`` draws from the seed alone, in eval mode; torch's random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(*args, **options).eval()


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


def load_tensors(path: Path) -> Tensors:
    """The weights in a .safetensors, or in a file that ``torch.save`` wrote."""
    if path.suffix != ".safetensors":
        return model_weights(read_checkpoint(path), path)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} is not a whole .safetensors: {error}") from None


def read_checkpoint(path: Path) -> Mapping[str, Any]:
    """What ``torch.save`` wrote, if it holds tensors and plain values only: anything that could run code is refused."""
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


def ivon_checkpoint(model: nn.Module, path: Path) -> tuple[nn.Module, Posterior]:
    """The model with the weights and norms' statistics of a checkpoint, in eval mode, and its IVON posterior.

    ``path`` is what ``torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)`` wrote,
    with ivon-opt's optimizer or varprop's; ``state_dict`` and other usual keys are known too.
    """
    checkpoint = read_checkpoint(path)
    optimizer = _entry(checkpoint, _OPTIMIZER_KEYS, path, "the optimizer's state")
    fill(model, model_weights(checkpoint, path), str(path))
    try:
        return model.eval(), Posterior.from_ivon(model, optimizer)
    except PosteriorError as error:
        raise DataError(f"{path}: {error}") from error


def _entry(checkpoint: Mapping[str, Any], keys: Sequence[str], path: Path, what: str) -> Mapping[str, Any]:
    """What lies under the first of the keys that is there."""
    for key in keys:
        if isinstance(checkpoint.get(key), Mapping):
            return checkpoint[key]
    there = ", ".join(map(repr, list(checkpoint)[:8]))
    raise DataError(f"{path} is without {what}: looked for {', '.join(map(repr, keys))}, and it holds {there}")


def model_weights(checkpoint: Mapping[str, Any], path: Path) -> Tensors:
    """By name, without what DistributedDataParallel and torch.compile put in front."""
    tensors: Tensors = {}
    weights = _entry(checkpoint, _MODEL_KEYS, path, "the model's weights")
    for key, tensor in weights.items():
        name = key
        while name.startswith(("module.", "_orig_mod.")):
            name = name.partition(".")[2]
        if not isinstance(tensor, Tensor):
            raise DataError(f"{path}: {key!r} is a {type(tensor).__name__}, not a tensor")
        tensors[name] = tensor
    return tensors
