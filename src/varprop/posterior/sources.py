"""The weights of a model, of a state dict or of a file, by the names of one model's parameters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from varprop.errors import PosteriorError, PosteriorFileError, PosteriorMismatchError
from varprop.moments import Moments
from varprop.posterior.names import did_you_mean
from varprop.posterior.tensors import cast, listing

Tensors = dict[str, Tensor]
Source = nn.Module | Mapping[str, Tensor] | str | os.PathLike[str]

# What DataParallel, DistributedDataParallel, AveragedModel and torch.compile put in front of the names.
_PREFIXES = ("module.", "_orig_mod.")
_SHOWN = 8


class Layout(NamedTuple):
    """What a model's weights are called: every alias of a parameter, the parameters themselves, and the buffers."""

    canonical: dict[str, str]
    parameters: dict[str, nn.Parameter]
    buffers: frozenset[str]


def layout(model: nn.Module) -> Layout:
    parameters = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
    names = {id(p): name for name, p in parameters.items()}
    every = model.named_parameters(remove_duplicate=False)
    # Parameters that are not floating point cannot be random: like buffers they are constants of the model.
    constants = [name for name, p in model.named_parameters() if not p.is_floating_point()]
    buffers = [name for name, _ in model.named_buffers(remove_duplicate=False)]
    return Layout({a: names[id(p)] for a, p in every if id(p) in names}, parameters, frozenset(buffers + constants))


def unwrapped(model: nn.Module) -> nn.Module:
    """The model below the wrappers that only prefix its names."""
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel | AveragedModel):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), nn.Module):  # torch.compile
            model = inner
        else:
            return model


def required(model: Any, call: str) -> nn.Module:
    """``model``, or an error if the arguments are in the wrong order."""
    if not isinstance(model, nn.Module):
        raise PosteriorError(f"{call}: the model comes first, not {type(model).__name__}")
    return model


def read(source: Any, wanted: Layout) -> tuple[Tensors, list[str]]:
    """The weights in ``source`` by the model's names, and all that is wrong with them. Buffers are left out."""
    given = _given(source)
    weights: Tensors = {}
    problems = []
    for key, tensor in given.items():
        name = _plain(key, wanted)
        if name in wanted.canonical:
            weights.setdefault(wanted.canonical[name], tensor)
        elif name not in wanted.buffers and name != "n_averaged" and not name.endswith("_extra_state"):
            problems.append(f"{key!r} is not in the model{did_you_mean(key, wanted.canonical)}")
    problems = [f"{name!r} is missing" for name in wanted.parameters if name not in weights] + problems
    for name, tensor in weights.items():
        if fault := _fault(tensor, wanted.parameters[name]):
            problems.append(f"{name!r} {fault}")
    return weights, problems


def shortened(problems: list[str]) -> list[str]:
    rest = len(problems) - _SHOWN
    return [*problems[:_SHOWN], f"… and {rest} more"] if rest > 0 else problems


def placed(model: nn.Module, mean: Mapping[str, Tensor], var: Mapping[str, Tensor]) -> tuple[Tensors, Tensors]:
    """Means and variances in the dtype and on the device of the parameters they belong to.

    They are named as in the model below its wrappers, and returned by the names of the model given.
    """
    inner = unwrapped(model)
    parameters = dict(inner.named_parameters(remove_duplicate=False))
    problems = _misfits(mean, parameters)
    if problems:
        headline = f"these weights do not fit {type(model).__name__}"
        raise PosteriorMismatchError(listing(headline, shortened(problems), "Give the model they were collected from."))
    given = {id(parameter): name for name, parameter in model.named_parameters()}
    moved = {}
    for name, tensor in mean.items():
        parameter = parameters[name]
        moved[given[id(parameter)]] = cast(
            name, Moments(tensor.detach(), var[name].detach()), parameter.device, parameter.dtype
        )
    return {name: pair.mean for name, pair in moved.items()}, {name: pair.var for name, pair in moved.items()}


def refuse_constant(var: Iterable[Tensor], what: str, remedy: str) -> None:
    """Weights that never differ are a mistake in how they were gathered, not a certain posterior."""
    if not any(bool((tensor != 0).any()) for tensor in var):
        raise PosteriorError(f"{what} are all the same, so there is no variance in them: {remedy}")


def _misfits(mean: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> list[str]:
    found = []
    for name, tensor in mean.items():
        if name not in parameters:
            found.append(f"{name!r} is not a parameter of the model{did_you_mean(name, parameters)}")
        elif tensor.shape != parameters[name].shape:
            found.append(f"{name!r} has shape {tuple(tensor.shape)}, in the model {tuple(parameters[name].shape)}")
    return found


def _given(source: Any) -> Mapping[str, Any]:
    if isinstance(source, nn.Module):
        return dict(unwrapped(source).named_parameters(remove_duplicate=False))
    if isinstance(source, Mapping):
        return source
    if isinstance(source, str | os.PathLike):
        return _file(Path(source))
    raise PosteriorError(f"a {type(source).__name__} is no model, state dict or path of a safetensors file")


def _file(path: Path) -> Tensors:
    if not path.is_file():
        reason = "it is a folder, name the file in it" if path.is_dir() else "there is no such file"
        raise PosteriorFileError(f"cannot read {path}: {reason}")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise PosteriorFileError(
            f"cannot read {path}: not a whole safetensors file ({error}). Other formats can run code and are not "
            "opened: pass torch.load(path, weights_only=True)."
        ) from error


def _plain(key: Any, wanted: Layout) -> str:
    name = str(key)
    while name not in wanted.canonical and name not in wanted.buffers and name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name


def _fault(tensor: Any, parameter: nn.Parameter) -> str | None:
    if not isinstance(tensor, Tensor):
        return f"is a {type(tensor).__name__}, not a tensor"
    if not tensor.is_floating_point():
        return f"is {tensor.dtype}, not floating point"
    if tensor.shape != parameter.shape:
        return f"has shape {tuple(tensor.shape)}, in the model {tuple(parameter.shape)}"
    if count := int((~torch.isfinite(tensor)).sum()):
        return f"is NaN or infinite in {count} of {tensor.numel()} entries"
    return None
