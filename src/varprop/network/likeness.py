"""Is a model the one that was saved? Its classes, their code and its settings tell, without a capture.

What they do not tell is left to the first call, in which graph and model are compared.
"""

from __future__ import annotations

import functools
import hashlib
import json
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype, torch.device)
VERSIONED = ("torch", "transformers")
"""Packages whose code is told by their version."""
SETTINGS = {*vars(nn.Module()), "name_or_path"}
ORIGINS = {"_name_or_path", "transformers_version", "architectures", "dtype"}
"""What a configuration of transformers notes of where a model comes from, and not of what it does."""
DEEPEST = 6


def likeness(model: nn.Module) -> str:
    """Equal for models of the same modules, with the same code and settings, whatever their weights."""
    total = hashlib.sha256()
    for path, module in model.named_modules(remove_duplicate=False):
        hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        own = {key: value for key, value in vars(module).items() if not _is_noise(module, key)}
        kind: Any = type(module)
        for text in (path, *_kind(kind), *_spell([own, _foreign(hooks)], {}, 0)):
            total.update(f"{text}\n".encode())
    return total.hexdigest()


def _is_noise(module: nn.Module, key: str) -> bool:
    return key in SETTINGS or (key.startswith("_") and _is_versioned(type(module).__module__))


def _foreign(hooks: tuple[Any, ...]) -> list[Any]:
    """Those of packages come by themselves: transformers records hidden states in them, from the first call on."""
    return [hook for hook in hooks if not _is_versioned(getattr(hook, "__module__", None))]


def _is_versioned(module: Any) -> bool:
    return str(module).partition(".")[0] in VERSIONED


@functools.cache
def _kind(kind: Any) -> tuple[str, ...]:
    """The class and those it is made of, with the code of all their functions."""
    texts: list[str] = []
    for each in kind.__mro__:
        texts.append(each.__qualname__)
        if not _is_versioned(each.__module__) and each is not object:
            texts += _spell(dict(vars(each)), {}, 0)
    return tuple(texts)


def _spell(value: Any, seen: dict[int, Any], depth: int) -> Iterator[str]:
    """A value as lines of text, the same in every process."""
    if isinstance(value, PLAIN):
        yield repr(value)
        return
    if depth > DEEPEST or id(value) in seen:
        return
    if not isinstance(value, Mapping | list | tuple):
        seen[id(value)] = value  # kept, so that no other gets its id
    yield type(value).__qualname__
    if isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}"
    elif isinstance(value, nn.Module | types.ModuleType):
        return  # the former are met by themselves
    elif hasattr(value, "to_dict") and _is_versioned(type(value).__module__):
        settings = {key: part for key, part in value.to_dict().items() if key not in ORIGINS}
        yield json.dumps(json.loads(json.dumps(settings, default=str)), sort_keys=True)  # numbers as keys become text
        yield str(
            [getattr(part, f"_{name}_implementation", None) for name in ("attn", "experts") for part in _all(value)]
        )
    elif isinstance(value, types.CodeType):
        yield value.co_code.hex()
        yield from _spell((value.co_names, value.co_varnames, value.co_consts), seen, depth)
    else:
        for key, part in _parts(value):
            yield str(key)
            yield from _spell(part, seen, depth + 1)


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    function = getattr(value, "__func__", getattr(value, "fget", value))  # of a method or a property
    if isinstance(function, types.FunctionType):
        if _is_versioned(function.__module__):
            yield "function", function.__qualname__
            return
        code = function.__code__
        yield "code", code
        yield "defaults", (function.__defaults__, function.__kwdefaults__)
        yield "closure", [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
        yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
    elif isinstance(value, functools.partial):
        yield from (("function", value.func), ("args", value.args), ("keywords", value.keywords))
    elif callable(value) and hasattr(value, "__qualname__"):  # a class, or a function that is not written in Python
        yield "name", value.__qualname__
    elif isinstance(value, Mapping | types.MappingProxyType):
        yield from ((key, value[key]) for key in value if not str(key).startswith("__"))
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif isinstance(value, set | frozenset):
        yield from enumerate(sorted(map(repr, value)))
    elif hasattr(value, "__dict__"):
        yield from vars(value).items()


def _all(config: Any) -> list[Any]:
    """A configuration and those of its parts."""
    parts = (getattr(config, key, None) for key in getattr(config, "sub_configs", ()))
    return [config, *(inner for part in parts if part is not None for inner in _all(part))]


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
