"""Things named on the command line: ``module:function``, or the class of a Hugging Face model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from varprop.errors import InputError
from varprop.predict.links import Link
from varprop.predict.storage import LINKS


def call(reference: str, what: str) -> Any:
    """What the function returns that ``module:function`` names; modules are found in the current folder too."""
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
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
    """Inputs to try a model with: of the given shape, or what a Hugging Face configuration says."""
    if shape is not None:
        try:
            sizes = tuple(int(size) for size in shape.split(","))
        except ValueError:
            raise InputError(
                f"a shape is whole numbers with commas between, such as 2,3,224,224, not {shape!r}"
            ) from None
        return (torch.zeros(sizes),), {}
    config = getattr(model, "config", None)
    name = getattr(model, "main_input_name", None)
    if config is None or name not in ("pixel_values", "input_ids"):
        raise InputError("what this model takes is not known: give --shape, e.g. --shape 2,3,224,224")
    if name == "input_ids":
        return (), {"input_ids": torch.zeros(2, 16, dtype=torch.long)}
    side, channels = getattr(config, "image_size", 224), getattr(config, "num_channels", 3)
    sides = side if isinstance(side, list | tuple) else (side, side)
    return (), {"pixel_values": torch.zeros(2, channels, *sides)}


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
    if found is None or not issubclass(found, transformers.PreTrainedModel) or found.config_class is None:
        raise InputError(f"{name!r} is neither module:function nor a model class of transformers")
    return found(found.config_class()).eval()
