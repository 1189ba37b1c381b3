"""Call signatures: which calls one captured graph serves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from varprop.errors import InputError
from varprop.moments import Moments

Structure = tuple[Any, ...]
Size = int | str  # a fixed size, or the name of a symbol that binds to any size in its range

CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)


class Binder:
    """Brings the arguments of ``forward`` to one form, so that ``f(x)`` and ``f(x=x)`` are one call."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        parameters = inspect.signature(forward).parameters.values()
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.names = [p.name for p in parameters if p.kind in by_position]
        self.optional = [p.name for p in parameters if p.default is None]
        self.positional_only = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments without a name (``*args``), and the named ones less those that are None by default."""
        named = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name in named:
                raise InputError(f"argument {name!r} was given twice, by position and by name")
            named[name] = value
        named = {name: value for name, value in named.items() if value is not None or name not in self.optional}
        return args[len(self.names) :], named

    def call(self, function: Callable[..., Any], unnamed: tuple[Any, ...], named: dict[str, Any]) -> Any:
        leading = self.names if unnamed else self.positional_only
        rest = {name: value for name, value in named.items() if name not in leading}
        return function(*(named.get(name) for name in leading), *unnamed, **rest)


def flatten(value: Any, leaves: list[Tensor], where: str = "") -> Structure:
    """Append the tensors of ``value`` to ``leaves``; return its structure, comparable with ``==``."""
    if isinstance(value, Moments):
        _check_moments(value, where)
        leaves += [value.mean, value.var]
        return ("moments",)
    if isinstance(value, Tensor):
        leaves.append(value)
        return ("tensor",)
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return (kind, tuple(flatten(item, leaves, f"{where}[{i}]") for i, item in enumerate(value)))
    if isinstance(value, Mapping):
        items = tuple(
            (key, flatten(item, leaves, f"{where}.{key}" if where else str(key))) for key, item in value.items()
        )
        return ("dict", items)
    if isinstance(value, CONSTANTS):
        return ("constant", type(value), value)
    raise InputError(
        f"argument {where or '?'} is a {type(value).__name__}: pass tensors, Moments, numbers, strings, None, "
        "or tuples, lists and dicts of them"
    )


def unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    """The inverse of ``flatten`` on leaves of which ``moments`` take one, as the graph has it."""
    kind = structure[0]
    if kind in ("tensor", "moments"):
        return next(leaves)
    if kind in ("list", "tuple"):
        items = [unflatten(item, leaves) for item in structure[1]]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {key: unflatten(item, leaves) for key, item in structure[1]}
    return structure[2]


def random_leaves(structure: Structure) -> list[bool]:
    """For each input of the graph: does it come as Moments?"""
    kind = structure[0]
    if kind in ("tensor", "moments"):
        return [kind == "moments"]
    if kind == "constant":
        return []
    items = [item[1] for item in structure[1]] if kind == "dict" else structure[1]
    return [flag for item in items for flag in random_leaves(item)]


@dataclass(frozen=True)
class Signature:
    """Structure, dtypes and sizes of the calls one graph serves."""

    structure: Structure
    dtypes: tuple[torch.dtype, ...]
    sizes: tuple[tuple[Size, ...], ...]
    ranges: dict[str, tuple[int, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, structure: Structure, leaves: list[Tensor]) -> Signature:
        return cls(structure, tuple(leaf.dtype for leaf in leaves), tuple(tuple(leaf.shape) for leaf in leaves))

    def accepts(self, structure: Structure, leaves: list[Tensor]) -> bool:
        if structure != self.structure:
            return False
        bound: dict[str, int] = {}
        for leaf, dtype, sizes in zip(leaves, self.dtypes, self.sizes, strict=True):
            if leaf.dtype != dtype or leaf.ndim != len(sizes):
                return False
            for size, expected in zip(leaf.shape, sizes, strict=True):
                if isinstance(expected, int):
                    if size != expected:
                        return False
                elif expected in bound:
                    if size != bound[expected]:
                        return False
                else:
                    low, high = self.ranges[expected]
                    if size < low or size > high:
                        return False
                    bound[expected] = size
        return True

    def with_dtype(self, old: torch.dtype, new: torch.dtype) -> Signature:
        dtypes = tuple(new if dtype == old else dtype for dtype in self.dtypes)
        return Signature(self.structure, dtypes, self.sizes, self.ranges)

    def describe(self) -> str:
        shapes = [
            f"{str(t).removeprefix('torch.')}[{', '.join(map(str, s))}]"
            for t, s in zip(self.dtypes, self.sizes, strict=True)
        ]
        return ", ".join(shapes)


def free_dims(leaves: list[Tensor]) -> list[list[bool]]:
    """Which sizes may differ from call to call: the batch, and the length of sequences.

    Sequences are integer tensors (ids, masks) and float tensors of rank 3 (embeddings); the sizes of
    images stay fixed, because free ones cost speed once compiled.
    """
    batch = next((leaf.shape[0] for leaf in leaves if leaf.ndim), None)

    def is_free(leaf: Tensor, dim: int) -> bool:
        if dim == 0:
            return leaf.shape[0] == batch
        sequence = not leaf.is_floating_point() or (leaf.ndim == 3 and dim == 1)
        return sequence and leaf.shape[dim] > 1

    return [[is_free(leaf, dim) for dim in range(leaf.ndim)] for leaf in leaves]


def example(leaves: list[Tensor], free: list[list[bool]], device: torch.device) -> list[Tensor]:
    """Stand-ins for the leaves: only their shapes matter, and a size of 1 would be baked in, so it is doubled."""
    shapes = [
        [2 if f and n == 1 else n for n, f in zip(leaf.shape, dims, strict=True)]
        for leaf, dims in zip(leaves, free, strict=True)
    ]
    return [torch.zeros(shape, dtype=leaf.dtype, device=device) for shape, leaf in zip(shapes, leaves, strict=True)]


def dynamic_shapes(free: list[list[bool]]) -> tuple[dict[int, Any], ...]:
    return tuple({dim: Dim.AUTO if f else Dim.STATIC for dim, f in enumerate(dims)} for dims in free)


def _check_moments(value: Moments, where: str) -> None:
    mean, var = value
    if not (isinstance(mean, Tensor) and isinstance(var, Tensor)):
        raise InputError(
            f"argument {where}: Moments take two tensors, not {type(mean).__name__} and {type(var).__name__}"
        )
    if not mean.is_floating_point() or not var.is_floating_point():
        raise InputError(f"argument {where}: Moments need floats, not {mean.dtype} and {var.dtype}")
    if mean.shape != var.shape:
        raise InputError(f"argument {where}: mean {tuple(mean.shape)} and var {tuple(var.shape)} differ in shape")
