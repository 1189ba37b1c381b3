"""Things named on the command line: ``module:function``, or the class of a Hugging Face model."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from varprop.batch import read, repeatable
from varprop.errors import InputError
from varprop.prediction.links import Link
from varprop.prediction.predictor_config import LINKS
from varprop.prediction.predictors import MeanNetwork, device_of

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def numbers(text: str) -> list[int]:
    """``0``, ``0-4`` or ``0,3``."""
    found: list[int] = []
    for part in text.split(","):
        matched = _RANGE.fullmatch(part.strip())
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (1, 0)
        if last < first:
            raise InputError(f"seeds are numbers or ranges, such as 0, 0-4 or 0,3, not {text!r}")
        found += range(first, last + 1)
    return found


def writable(folder: Path) -> Path:
    """The folder, made if need be: one that cannot be written to is refused before the work, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another folder") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"no permission to write to {folder}; choose another folder")
    return folder


def call(reference: str, what: str) -> Any:
    """What the function returns that ``module:function`` names; modules are found in the current folder too."""
    module_name, _, name = reference.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), name]):
        raise InputError(f"{what} {reference!r} is not of the form module:function")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{what} {reference!r}: {error}; it is looked for in this folder and in what is installed"
        ) from None
    function: Callable[[], Any] | None = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{what} {reference!r}: {module_name} has no function {name}")
    return function()


def model_of(reference: str) -> nn.Module:
    """A model in evaluation mode: from ``module:function``, or a Hugging Face class with its default configuration."""
    if ":" in reference:
        model = call(reference, "model")
        if not isinstance(model, nn.Module):
            raise InputError(f"model {reference!r} returned a {type(model).__name__}, not a torch.nn.Module")
        return model.eval()
    return _hugging_face(reference)


def inputs_of(model: nn.Module, shape: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs that the model can take: zeros of the given shape, or what a Hugging Face configuration says."""
    config, name = getattr(model, "config", None), getattr(model, "main_input_name", None)
    known = name if config is not None and name in ("pixel_values", "input_ids") else None
    if shape is not None:
        parts = [part.strip() for part in shape.split(",")]
        if not all(part.isdecimal() and int(part) for part in parts):
            raise InputError(f"a shape is whole numbers with commas between, such as 2,3,224,224, not {shape!r}")
        sizes = tuple(int(part) for part in parts)
    elif known is None:
        raise InputError("what this model takes is not known: give --shape, e.g. --shape 2,3,224,224")
    elif known == "input_ids":
        sizes = (2, 16)
    else:
        side, channels = getattr(config, "image_size", 224), getattr(config, "num_channels", 3)
        sizes = (2, channels, *(side if isinstance(side, list | tuple) else (side, side)))
    x = torch.zeros(sizes, dtype=torch.long if known == "input_ids" else None, device=device_of(model))
    args, kwargs = ((x,), {}) if known is None else ((), {known: x})
    check_inputs(model, args, kwargs)
    return args, kwargs


def check_inputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """An error in one line if the model itself cannot take these inputs."""
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        named = [*(("", x) for x in args), *kwargs.items()]
        given = ", ".join(f"{name}{list(x.shape)}" for name, x in named if hasattr(x, "shape"))
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"{type(model).__name__} cannot take inputs of shape {given}: {reason}") from error


def device_named(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):  # torch asserts that it was built for what is asked for
        raise InputError(
            f"there is no device {name!r} here: use --device cpu, or see torch.cuda.is_available()"
        ) from None
    return name


def batches_of(reference: str, model: nn.Module) -> Any:
    """Batches from ``module:function``, to be gone through several times; the model must be able to take the first."""
    batches = repeatable(call(reference, "data"))
    first = next(iter(read(batches, one=MeanNetwork(model).takes_one))).to(device_of(model))
    check_inputs(model, first.args, first.kwargs)
    return batches


def link_of(name: str) -> Link:
    for known, link in LINKS.items():
        if known.replace(" ", "-") == name.replace(" ", "-"):
            return link()
    raise InputError(f"there is no link {name!r}; there are {', '.join(known.replace(' ', '-') for known in LINKS)}")


def _hugging_face(name: str) -> nn.Module:
    try:
        import transformers
    except ImportError:
        raise InputError("Hugging Face models need transformers: pip install 'varprop[hf]'") from None
    found = getattr(transformers, name, None)
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel) or not found.config_class:
        raise InputError(f"{name!r} is neither module:function nor a model class of transformers, such as ViTModel")
    return found(found.config_class()).eval()
