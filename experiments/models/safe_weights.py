"""Weights from safetensors files into a model, or an error that lists what does not fit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from experiments.faults import DataError

Tensors = dict[str, Tensor]
_SHOWN = 6


def read(files: Sequence[str | os.PathLike[str]]) -> tuple[Tensors, dict[str, str]]:
    """The tensors of one or several safetensors files, and the metadata of the first."""
    tensors: Tensors = {}
    metadata: dict[str, str] = {}
    for path in map(Path, files):
        if not path.is_file():
            raise DataError(f"there is no file {path}")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = metadata or file.metadata() or {}
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path} is not a whole safetensors file: {error}") from None
    return tensors, metadata


def parts_in(folder: Path) -> list[Path]:
    """All safetensors files of a folder, in the order of their names."""
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise DataError(f"{folder} holds no .safetensors file; other formats can run code and are not opened")
    return found


def fill(model: nn.Module, tensors: Mapping[str, Tensor], where: str, *, fresh: Sequence[str] = ()) -> None:
    """Copy ``tensors`` into the model's parameters and buffers; only names below ``fresh`` may be missing."""
    own = model.state_dict()
    given = {name: tensor for name, tensor in tensors.items() if name in own}
    # Counts the batches a norm has seen; no prediction depends on it, and files made elsewhere lack it.
    missing = [name for name in own if name not in given and not name.endswith("num_batches_tracked")]
    lacking = [name for name in missing if not any(name.startswith(f"{path}.") for path in fresh)]
    problems = [f"lacks {name} {_shape(own[name])}" for name in lacking]
    problems += [f"has {name} {_shape(tensors[name])}, which the model lacks" for name in tensors if name not in own]
    problems += [
        f"{name} is {_shape(tensor)}, in the model {_shape(own[name])}"
        for name, tensor in given.items()
        if tensor.shape != own[name].shape
    ]
    if problems:
        rest = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise DataError(
            f"{where} does not hold the weights of this {type(model).__name__}, but of another architecture: "
            f"{'; '.join(problems[:_SHOWN])}{rest}"
        )
    damaged = [name for name, tensor in given.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if damaged:
        raise DataError(f"{where} is damaged: NaN or infinite values in {', '.join(damaged[:_SHOWN])}")
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"
