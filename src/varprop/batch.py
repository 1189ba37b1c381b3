"""Data in all forms users have: pairs, tuples, dicts with labels; lists, data loaders, datasets, arrays, generators."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import register_dataclass, tree_flatten, tree_leaves, tree_map, tree_map_only
from torch.utils.data import DataLoader, Dataset

from varprop.errors import InputError
from varprop.moments import Moments

LABELS = ("labels", "label")
SIZE = 256
"""Examples in a batch, where data do not come in batches."""
SHAPE_OF_A_BATCH = "a batch is (inputs, target), or a dict with 'labels' among the model's keyword arguments"
RAGGED = (
    "the examples of the data set differ in size: pad them, or give a DataLoader with "
    "collate_fn=transformers.DataCollatorWithPadding(tokenizer)"
)


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call. A pytree, as ``Batch`` is."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __len__(self) -> int:
        """The number of examples: rows of the first tensor."""
        return next((len(x) for x in _tensors(self) if x.ndim), 0)

    def to(self, device: torch.device) -> Self:
        return tree_map_only(Tensor, lambda x: _ordinary(x.to(device, non_blocking=True)), self)

    def rows(self, start: int, stop: int) -> Self:
        """Some of the examples: every tensor with one row per example is cut, others are shared."""
        return self if start == 0 and stop >= len(self) else self._each_row(lambda x: x[start:stop])

    def take(self, chosen: Tensor) -> Self:
        """The examples at which ``chosen`` is true."""
        return self if bool(chosen.all()) else self._each_row(lambda x: x[chosen.to(x.device)])

    def in_order(self, order: Tensor) -> Self:
        """The examples of these numbers."""
        return self._each_row(lambda x: x[order.to(x.device)])

    def _each_row(self, select: Callable[[Tensor], Tensor]) -> Self:
        return tree_map_only(Tensor, lambda x: select(x) if x.ndim and len(x) == len(self) else x, self)


@dataclass(frozen=True)
class Batch(Inputs):
    """The arguments of a call, and the target."""

    target: Tensor

    def __len__(self) -> int:
        return len(self.target)


register_dataclass(Inputs)
register_dataclass(Batch)
Some = TypeVar("Some", bound=Inputs)


def read(data: Any, *, one: bool = False) -> Iterator[Batch]:
    """The batches, taken apart. One batch by itself is cut into pieces; having none is an error.

    Several inputs in a list or tuple are an argument each, unless the call takes ``one`` alone.
    """
    found = False
    for batch in _cut(data, SIZE, functools.partial(take_apart, one=one), _is_labelled):
        found = True
        yield batch
    if not found:
        raise InputError("there are no batches: the loader or list is empty, or can be read only once and was")


def read_inputs(data: Any, size: int = SIZE, *, one: bool = False) -> Iterator[Inputs]:
    """The inputs alone: targets are left out where there are some.

    Data that do not come in batches, such as an array or a dict of all examples, are cut into batches of ``size``. As
    in ``read``, the last entry of a tuple is a target; a list of tensors is a list of batches.
    """
    return _cut(data, size, functools.partial(take_inputs, one=one), _is_whole)


def _cut(data: Any, size: int, parse: Callable[[Any], Some], is_whole: Callable[[Any], bool]) -> Iterator[Some]:
    if is_whole(data):
        all_of_it = parse(data)
        if len(all_of_it) > size:
            _refuse_uneven(all_of_it)
        for start in range(0, max(1, len(all_of_it)), size):
            yield all_of_it.rows(start, start + size)
    else:
        yield from map(parse, _each(data, size))


def _refuse_uneven(data: Inputs) -> None:
    """Examples are told apart by their rows, so some input must have as many as there are targets."""
    rows = [len(x) for x in _tensors((data.args, data.kwargs)) if x.ndim]
    if len(data) not in rows:
        raise InputError(f"{len(data)} targets for inputs of {' and '.join(map(str, rows))} rows")


def _is_whole(data: Any) -> bool:
    """Are these all examples at once?"""
    return isinstance(data, Moments) or _is_array(data) or (not isinstance(data, list) and _is_labelled(data))


def _is_labelled(data: Any) -> bool:
    """Are these all examples at once, with their targets?"""
    if not isinstance(data, list | tuple) or len(data) < 2:
        return isinstance(data, Mapping)
    return all(map(_is_input, data[:-1])) and (_is_array(data[-1]) or bool(_word(data[-1])))


def count(data: Any) -> int | None:
    """How many examples there are, where that is easily told."""
    if _is_whole(data):
        return len(take_inputs(data))
    source = getattr(data, "dataset", data)  # of a data loader
    return len(source) if isinstance(source, Dataset) and hasattr(source, "__len__") else None


def _is_input(value: Any) -> bool:
    """An array, or several of them together."""
    if isinstance(value, Mapping):
        return True
    return all(map(_is_array, value)) if isinstance(value, list | tuple) else _is_array(value)


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Neighbours whose tensors differ in the number of examples only become one batch; empty ones are left out."""
    for outline, group in itertools.groupby((batch for batch in batches if len(batch)), _outline):
        alike = list(group)
        if len(alike) == 1 or not outline:
            yield from alike
            continue
        yield tree_map(lambda *x: torch.cat(x) if isinstance(x[0], Tensor) else x[0], *alike)


def _outline(batch: Batch) -> str:
    """Equal for batches that can be joined; empty for one that cannot."""
    leaves, structure = tree_flatten(batch)
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


def take_apart(item: Any, one: bool = False) -> Batch:
    inputs, target = _split(item)
    if target is None:
        if isinstance(item, Mapping):
            raise InputError(f"a batch has the keys {', '.join(map(repr, item))} and no 'labels': {SHAPE_OF_A_BATCH}")
        raise InputError(f"a batch is a {type(item).__name__}: {SHAPE_OF_A_BATCH}")
    if word := _word(target):
        raise InputError(
            f"the labels are strings, such as {word!r}: give class indices, "
            "torch.tensor([names.index(label) for label in labels])"
        )
    target = _as_tensor(target)
    if isinstance(target, int | float) or (isinstance(target, Tensor) and not target.ndim):
        raise InputError(
            "the target of a batch is a single number: give single examples as a DataLoader or a Dataset of torch"
        )
    if not isinstance(target, Tensor):
        raise InputError(f"the target of a batch is a {type(target).__name__}, not a tensor")
    if not len(target):
        raise InputError("a batch is empty")
    return Batch(*_call(inputs, one), target)


def take_inputs(item: Any, one: bool = False) -> Inputs:
    found = Inputs(*_call(_split(item)[0], one))
    if not len(found):
        raise InputError(f"a batch, a {type(item).__name__}, holds no examples: give tensors, or a dict of tensors")
    return found


def _split(item: Any) -> tuple[list[Any], Any]:
    """Inputs and target, which may be missing."""
    if isinstance(item, Mapping):
        name = next((name for name in LABELS if name in item), None)
        return [{key: value for key, value in item.items() if key != name}], item[name] if name else None
    if _is_several(item):
        *inputs, target = item if len(item) > 1 else (*item, None)
        return inputs, target
    return [item], None


def _call(inputs: list[Any], one: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """As positional and keyword arguments; texts in a dict, which no model takes, are left out."""
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return (), {key: _as_tensors(value) for key, value in inputs[0].items() if not _word(value)}
    if len(inputs) == 1 and _is_several(inputs[0]) and not (one and len(inputs[0]) > 1):
        inputs = [*inputs[0]]
    return tuple(map(_as_tensors, inputs)), {}


def _is_several(value: Any) -> bool:
    return isinstance(value, list | tuple) and not isinstance(value, Moments)


def _as_tensors(value: Any) -> Any:
    """Every array in it; a mapping of any kind, such as what a tokenizer returns, becomes a dict."""

    def convert(item: Any) -> Any:
        return {key: _as_tensors(part) for key, part in item.items()} if isinstance(item, Mapping) else _as_tensor(item)

    return tree_map(convert, value, is_leaf=lambda item: isinstance(item, Mapping))


def _as_tensor(value: Any) -> Any:
    """Arrays become tensors; float64, which is what arrays usually are, becomes the default dtype."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "biuf":
        raise InputError(f"an array holds {value.dtype}, not numbers")
    found = torch.from_numpy(np.ascontiguousarray(value))
    return found.to(torch.get_default_dtype()) if found.dtype == torch.float64 else found


def _word(value: Any) -> str:
    """The first of some texts; empty for anything else."""
    if isinstance(value, np.ndarray):
        value = value.flat[:1].tolist()
    first = value[0] if isinstance(value, list | tuple) and value else value
    return first if isinstance(first, str) else ""


def _each(data: Any, size: int = SIZE) -> Iterable[Any]:
    if isinstance(data, Dataset) or hasattr(data, "column_names"):
        return _loaded(data, size)
    if isinstance(data, Tensor | np.ndarray | str) or not isinstance(data, Iterable):
        raise InputError(f"batches are a {type(data).__name__}: give an iterable of batches; {SHAPE_OF_A_BATCH}")
    return data


def _loaded(data: Any, size: int) -> Iterator[Any]:
    """Batches of a data set of torch or of Hugging Face."""
    if hasattr(data, "with_format") and not (getattr(data, "format", None) or {}).get("type"):  # a stream has none
        data = data.with_format("torch")
    try:
        yield from DataLoader(data, batch_size=size)
    except RuntimeError as error:
        if "equal size" not in str(error):
            raise
        raise InputError(RAGGED) from error


def _ordinary(x: Tensor) -> Tensor:
    """Tensors made under ``torch.inference_mode`` cannot take part in a fit: they are copied."""
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
