"""Batches as people have them: pairs, tuples, dicts with labels; from lists, data loaders, generators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from varprop.errors import InputError
from varprop.moments import Moments

LABELS = ("labels", "label")
SHAPE_OF_A_BATCH = "a batch is (inputs, target), or a dict with 'labels' among the model's keyword arguments"


@dataclass(frozen=True)
class Batch:
    """The arguments of a call, and the target."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)

    def to(self, device: torch.device) -> Batch:
        return self._map(lambda x: _ordinary(x.to(device, non_blocking=True)))

    def rows(self, start: int, stop: int) -> Batch:
        """Some of the examples: every tensor with one row per example is cut, others are shared."""
        if start == 0 and stop >= len(self):
            return self
        return self._map(lambda x: x[start:stop] if x.ndim and len(x) == len(self) else x)

    def take(self, chosen: Tensor) -> Batch:
        """The examples at which ``chosen`` is true."""
        if bool(chosen.all()):
            return self
        return self._map(lambda x: x[chosen.to(x.device)] if x.ndim and len(x) == len(self) else x)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(*(_map(function, part) for part in (self.args, self.kwargs, self.target)))


def read(batches: Any) -> Iterator[Batch]:
    """The batches, taken apart. One batch by itself is taken as a list of one; having none is an error."""
    found = False
    for item in _each(batches):
        found = True
        yield take_apart(item)
    if not found:
        raise InputError("there are no batches: the loader or list is empty, or can be read only once and was")


def joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Neighbours whose tensors differ in the number of examples only become one batch; empty ones are left out."""
    for outline, group in itertools.groupby((batch for batch in batches if len(batch)), _outline):
        alike = list(group)
        if len(alike) == 1 or not outline:
            yield from alike
            continue
        leaves, structures = zip(*(tree_flatten((b.args, b.kwargs, b.target)) for b in alike), strict=True)
        rows = [torch.cat(x) if isinstance(x[0], Tensor) else x[0] for x in zip(*leaves, strict=True)]
        yield Batch(*tree_unflatten(rows, structures[0]))


def _outline(batch: Batch) -> str:
    """Equal for batches that can be joined; empty for one that cannot."""
    leaves, structure = tree_flatten((batch.args, batch.kwargs, batch.target))
    if any(isinstance(x, Tensor) and (not x.ndim or len(x) != len(batch)) for x in leaves):
        return ""
    plain = [(tuple(x.shape[1:]), x.dtype, x.device) if isinstance(x, Tensor) else x for x in leaves]
    return f"{plain} {structure}"


def repeatable(batches: Any) -> Any:
    """Something that can be gone through several times: what has no length is taken for a stream, read and kept."""
    try:
        len(batches)
    except TypeError:
        return list(_each(batches))
    return batches


def refuse_nan(batch: Batch, place: str) -> None:
    """Infinities are left alone: masks have them."""
    for name, part in (("an input", (batch.args, batch.kwargs)), ("the target", batch.target)):
        for x in _tensors(part):
            if x.is_floating_point() and (wrong := int(x.isnan().sum())):
                raise InputError(
                    f"{name} of {place} is NaN in {wrong} of {x.numel()} entries: leave those examples out"
                )


def take_apart(item: Any) -> Batch:
    if isinstance(item, Mapping):
        name = next((name for name in LABELS if name in item), None)
        if name is None:
            raise InputError(f"a batch has the keys {', '.join(map(repr, item))} and no 'labels': {SHAPE_OF_A_BATCH}")
        inputs, target = ({key: value for key, value in item.items() if key != name},), item[name]
    elif isinstance(item, list | tuple) and not isinstance(item, Moments) and len(item) > 1:
        *rest, target = item
        inputs = tuple(rest)
    else:
        raise InputError(f"a batch is a {type(item).__name__}: {SHAPE_OF_A_BATCH}")
    if not isinstance(target, Tensor):
        raise InputError(f"the target of a batch is a {type(target).__name__}, not a tensor")
    if not target.ndim or not len(target):
        raise InputError("a batch is empty" if target.ndim else "the target of a batch is a single number, not a batch")
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return Batch((), dict(inputs[0]), target)
    if len(inputs) == 1 and isinstance(inputs[0], list | tuple) and not isinstance(inputs[0], Moments):
        return Batch(tuple(inputs[0]), {}, target)
    return Batch(inputs, {}, target)


def _each(batches: Any) -> Iterable[Any]:
    single = isinstance(batches, Mapping) or (
        isinstance(batches, list | tuple) and len(batches) > 1 and all(isinstance(item, Tensor) for item in batches)
    )
    if single:
        return [batches]
    if isinstance(batches, Tensor | str) or not isinstance(batches, Iterable):
        raise InputError(f"batches are a {type(batches).__name__}: give an iterable of batches; {SHAPE_OF_A_BATCH}")
    return batches


def _ordinary(x: Tensor) -> Tensor:
    """Tensors made under ``torch.inference_mode`` cannot take part in a fit: they are copied."""
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _map(lambda x: found.append(x) or x, value)  # type: ignore[func-returns-value]
    return found


def _map(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    def each(item: Any) -> Any:
        if isinstance(item, Mapping):  # of any kind, such as what a tokenizer returns
            return {key: _map(function, part) for key, part in item.items()}
        return function(item) if isinstance(item, Tensor) else item

    return tree_map(each, value, is_leaf=lambda item: isinstance(item, Mapping))
