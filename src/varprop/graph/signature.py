"""Calls: their structure and tensors, and which of them one captured graph serves."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from varprop.errors import InputError
from varprop.moments import Moments

Structure = tuple[Any, ...]
Size = int | str  # a fixed size, or the name of a symbol that binds to any size in its range

BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)


@dataclass(frozen=True, eq=False)
class Call:
    """One call: its structure, comparable with ``==``, and its tensors; ``Moments`` are two of them."""

    structure: Structure
    leaves: list[Tensor]
    given: list[Tensor] | None = None
    """The tensors for the model itself, if they differ: lengths of sequences stay on the CPU."""

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors a graph of the model sees: of moments, the mean."""
        return [mean for mean, _ in self._pairs(self.leaves)]

    @property
    def given_inputs(self) -> list[Tensor]:
        """The tensors the model itself sees."""
        return [mean for mean, _ in self._pairs(self.given or self.leaves)]

    @property
    def variances(self) -> list[Tensor]:
        return [var for _, var in self._pairs(self.leaves) if var is not None]

    def _pairs(self, leaves: list[Tensor]) -> list[tuple[Tensor, Tensor | None]]:
        remaining = iter(leaves)
        return [(next(remaining), next(remaining) if random else None) for random in random_inputs(self.structure)]

    @property
    def sizes(self) -> tuple[torch.Size, ...]:
        return tuple(x.shape for x in self.inputs)

    def outline(self) -> Call:
        """The same call without numbers, which is enough to capture it again."""
        return Call(self.structure, [torch.empty_like(leaf, device="meta") for leaf in self.leaves])


@dataclass(frozen=True)
class Named:
    """A kind of named tuple, told by what it is called: of one that was read from a file, no more is known."""

    name: str
    fields: tuple[str, ...]
    kind: Any = field(compare=False)

    @classmethod
    def of(cls, kind: Any) -> Named:
        return cls(kind.__name__, kind._fields, kind)


def takes_one(forward: Callable[..., Any]) -> bool:
    """Does it take a single argument by position, which several inputs can only be together?"""
    parameters = inspect.signature(forward).parameters.values()
    placed = [p for p in parameters if p.kind in (*BY_POSITION, inspect.Parameter.VAR_POSITIONAL)]
    return len(placed) == 1 and placed[0].kind in BY_POSITION and placed[0].default is inspect.Parameter.empty


class Binder:
    """Brings the arguments of ``forward`` to one form: ``f(x, y)`` and ``f(y=y, x=x)`` are one call."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        parameters = inspect.signature(forward).parameters.values()
        self.order = {p.name: place for place, p in enumerate(parameters)}
        self.names = [p.name for p in parameters if p.kind in BY_POSITION]
        self.optional = [p.name for p in parameters if p.default is None]
        self.positional_only = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A structure of two: arguments without a name (``*args``), and the named ones less defaults of None."""
        named = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name in named:
                raise InputError(f"argument {name!r} was given twice, by position and by name")
            named[name] = value
        named = {name: value for name, value in named.items() if value is not None or name not in self.optional}
        # Names that only **kwargs takes come last, in the order given, which is part of the call: forward may loop.
        named = dict(sorted(named.items(), key=lambda item: self.order.get(item[0], len(self.order))))
        leaves: list[Tensor] = []
        parts = flatten(args[len(self.names) :], leaves, "*args"), flatten(named, leaves)
        return Call(("tuple", parts), leaves)

    def run(self, function: Callable[..., Any], structure: Structure, inputs: Iterable[Tensor]) -> Any:
        """Call ``function`` with the arguments of a bound call; ``inputs`` are the tensors the model sees."""
        unnamed, named = unflatten(structure, iter(inputs))
        leading = self.names if unnamed else self.positional_only
        rest = {name: value for name, value in named.items() if name not in leading}
        return function(*(named.get(name) for name in leading), *unnamed, **rest)


def flatten(value: Any, leaves: list[Tensor], where: str = "") -> Structure:
    """Append the tensors of ``value`` to ``leaves``; return its structure."""
    if isinstance(value, Moments):
        _check_moments(value, where)
        leaves += [value.mean, value.var]
        return ("moments",)
    if isinstance(value, Tensor):
        leaves.append(value)
        return ("tensor",)
    if isinstance(value, list | tuple):
        items = tuple(flatten(item, leaves, f"{where}[{i}]") for i, item in enumerate(value))
        if hasattr(value, "_fields"):
            return ("named", Named.of(type(value)), items)
        return ("list" if isinstance(value, list) else "tuple", items)
    if isinstance(value, Mapping):
        pairs = ((key, flatten(item, leaves, f"{where}.{key}" if where else str(key))) for key, item in value.items())
        return ("dict", tuple(pairs))
    if isinstance(value, CONSTANTS):
        return ("constant", type(value), value)
    raise InputError(
        f"argument {where or '?'} is a {type(value).__name__}: pass tensors, Moments, numbers, strings, None, "
        "or tuples, lists and dicts of them"
    )


def unflatten(structure: Structure, inputs: Iterator[Any]) -> Any:
    """The inverse of ``flatten``, on the tensors the model sees."""
    kind = structure[0]
    if kind in ("tensor", "moments"):
        return next(inputs)
    if kind in ("list", "tuple", "named"):
        items = [unflatten(item, inputs) for item in structure[-1]]
        if kind == "named":
            return structure[1].kind._make(items)
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {key: unflatten(item, inputs) for key, item in structure[1]}
    return structure[2]


def random_inputs(structure: Structure) -> list[bool]:
    """For each input of the graph: does it come as Moments?"""
    kind = structure[0]
    if kind in ("tensor", "moments"):
        return [kind == "moments"]
    if kind == "constant":
        return []
    items = [item[1] for item in structure[1]] if kind == "dict" else structure[-1]
    return [flag for item in items for flag in random_inputs(item)]


@dataclass(frozen=True)
class Signature:
    """Structure, dtypes and sizes of the calls one graph serves."""

    structure: Structure
    dtypes: tuple[torch.dtype, ...]
    sizes: tuple[tuple[Size, ...], ...]
    ranges: dict[str, tuple[int, float]]

    def accepts(self, call: Call) -> bool:
        if call.structure != self.structure:
            return False
        bound: dict[str, int] = {}
        for leaf, dtype, sizes in zip(call.leaves, self.dtypes, self.sizes, strict=True):
            if leaf.dtype != dtype or leaf.ndim != len(sizes):
                return False
            for size, expected in zip(leaf.shape, sizes, strict=True):
                if isinstance(expected, int):
                    if size != expected:
                        return False
                    continue
                low, high = self.ranges[expected]
                if not low <= size <= high or size != bound.setdefault(expected, size):
                    return False
        return True

    @property
    def freedom(self) -> int:
        """How many of its sizes are free."""
        return sum(isinstance(size, str) for sizes in self.sizes for size in sizes)

    def alike(self, other: Signature) -> bool:
        """Do their calls differ in sizes and numbers alone?"""
        ndims = [*map(len, self.sizes)] == [*map(len, other.sizes)]
        return ndims and self.dtypes == other.dtypes and _less_numbers(self.structure) == _less_numbers(other.structure)

    def could_have_served(self, other: Signature) -> bool:
        """Was another graph for a call like ``other`` needed only because the model fixes sizes? Torch itself fixes
        those that are 1.
        """
        pairs = zip(itertools.chain(*self.sizes), itertools.chain(*other.sizes), strict=True)
        return self.freedom >= other.freedom and not any(1 in pair and pair[0] != pair[1] for pair in pairs)

    def describe(self) -> str:
        pairs = zip(self.dtypes, self.sizes, strict=True)
        return ", ".join(f"{dtype_name(dtype)}[{', '.join(map(str, sizes))}]" for dtype, sizes in pairs)


def _less_numbers(structure: Structure) -> Structure:
    if structure[0] == "constant":
        return structure[:2] if structure[1] in (int, float) else structure
    if structure[0] == "dict":
        return ("dict", *((key, _less_numbers(item)) for key, item in structure[1]))
    return structure if len(structure) == 1 else (*structure[:-1], tuple(map(_less_numbers, structure[-1])))


# --- sizes that may stay free --------------------------------------------------------------------


def free_sizes(inputs: list[Tensor]) -> list[tuple[Size, ...]]:
    """The sizes of the inputs, less those that may differ from call to call: the batch, and the length of sequences.

    Sequences are integer tensors (ids, masks) and float tensors of rank 3 (embeddings); the sizes of
    images stay fixed, because free ones cost speed once compiled.
    """
    batch = next((x.shape[0] for x in inputs if x.ndim), None)

    def is_free(x: Tensor, dim: int) -> bool:
        if dim == 0:
            return x.shape[0] == batch
        sequence = not x.is_floating_point() or (x.ndim == 3 and dim == 1)
        return sequence and x.shape[dim] > 1

    return [tuple("free" if is_free(x, dim) else n for dim, n in enumerate(x.shape)) for x in inputs]


def example_input(x: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Only the shape matters to export, which would bake a free size of 1 in: it is doubled."""
    shape = [size if isinstance(size, int) else (2 if n == 1 else n) for n, size in zip(x.shape, sizes, strict=True)]
    return torch.zeros(shape, dtype=x.dtype, device=x.device)


def dynamic_shapes(sizes: Iterable[Sequence[Size]]) -> tuple[dict[int, Any], ...]:
    return tuple({dim: Dim.STATIC if isinstance(n, int) else Dim.AUTO for dim, n in enumerate(ns)} for ns in sizes)


def _check_moments(value: Moments, where: str) -> None:
    mean, var = value
    if not (isinstance(mean, Tensor) and isinstance(var, Tensor)):
        raise InputError(
            f"argument {where}: Moments take two tensors, not {type(mean).__name__} and {type(var).__name__}"
        )
    if not mean.is_floating_point() or not var.is_floating_point():
        raise InputError(f"argument {where}: Moments need floats, not {mean.dtype} and {var.dtype}")
    if mean.dtype != var.dtype:
        raise InputError(f"argument {where}: mean is {mean.dtype} and var {var.dtype}: cast one of them")
    if mean.shape != var.shape:
        raise InputError(f"argument {where}: mean {tuple(mean.shape)} and var {tuple(var.shape)} differ in shape")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
