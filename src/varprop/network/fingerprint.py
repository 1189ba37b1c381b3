"""Is a model the one that was saved? Its source files and settings tell, without a capture."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from varprop.network.storage import digest

LIBRARIES = ("torch", "transformers")
"""Packages whose code is known by their versions, which are stored beside the fingerprint."""
SCALARS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype, torch.device)
INTERNAL = frozenset(vars(nn.Module()))
UNRELATED = {"name_or_path", "model_type", "transformers_version", "architectures", "dtype", "generation_config"}
"""Attributes of transformers that say where a model comes from, or how texts are drawn; its forward reads none."""


def fingerprint(model: nn.Module) -> str | None:
    """Equal for models of the same classes, source files and settings, whatever their weights.

    None, which equals nothing, if the model holds code that is in no source file of its classes: hooks, functions of
    the user's own among its attributes, classes of a notebook. A change that it misses, such as one in a file that the
    model's file imports, shows in the first call, in which graph and model are compared.
    """
    total = hashlib.sha256()
    try:
        for path, module in model.named_modules(remove_duplicate=False):
            if has_own_hooks(module):
                return None
            total.update(repr((path, _source(type(module)), _settings(module))).encode())
    except (TypeError, OSError, RecursionError):
        return None
    return total.hexdigest()


def has_own_hooks(module: nn.Module) -> bool:
    """Hooks other than those of transformers, which record hidden states and come by themselves in the first call."""
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return not all(map(_of_library, hooks))


def _of_library(item: Any) -> bool:
    return str(getattr(item, "__module__", None)).partition(".")[0] in LIBRARIES


def _source(kind: type[Any]) -> list[tuple[str, str]]:
    """The names of a class and its bases, with digests of the files they are written in."""
    return [
        (each.__qualname__, "" if _of_library(each) else digest(Path(inspect.getfile(each))))
        for each in kind.__mro__
        if each is not object
    ]


def _settings(item: Any) -> list[tuple[str, Any]]:
    """The attributes of a module or a configuration; private ones of a library's follow from the others."""
    library = _of_library(type(item))
    return [
        (key, _value(value))
        for key, value in sorted(vars(item).items())
        if key not in INTERNAL and not (library and (key.startswith("_") or key in UNRELATED))
    ]


def _value(value: Any) -> Any:
    """Something whose ``repr`` is the same in every process; a TypeError for what is not understood."""
    if isinstance(value, SCALARS):
        return value
    if isinstance(value, Tensor):
        return str(value.dtype), *value.shape
    if isinstance(value, dict):
        return [(_value(key), _value(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_value(item)) for item in value)
    if isinstance(value, functools.partial):
        return [_value(part) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, types.BuiltinFunctionType) or (callable(value) and _of_library(value)):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if callable(value) or not hasattr(value, "__dict__"):
        raise TypeError(f"a {type(value).__name__} may do anything")
    return _source(type(value)), _settings(value)
