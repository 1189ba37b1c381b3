"""What all predictions have in common, whatever is predicted: a row of every tensor for each example."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from varprop.errors import InputError
from varprop.moments import Moments
from varprop.prediction.targets import labelled


class Answer(ABC):
    """A dataclass of tensors, ``Moments`` and constants; examples are the first dimension of every tensor."""

    @property
    @abstractmethod
    def _places(self) -> tuple[int, ...]:
        """The shape of what is answered: examples, then tokens or pixels if each has an answer of its own."""

    @abstractmethod
    def columns(self) -> dict[str, Any]:
        """What a table says, each column with one entry for every place."""

    def __len__(self) -> int:
        return self._places[0]

    def __getitem__(self, rows: Any) -> Self:
        """Some of the examples: a slice, a mask, indices; or one, still with a dimension for examples."""
        if isinstance(rows, int | np.integer):
            index = rows + len(self) if rows < 0 else rows
            if not 0 <= index < len(self):
                raise IndexError(f"there are {len(self)} examples, and none has the number {rows}")
            rows = slice(index, index + 1)
        return self._map(lambda x: x[rows])

    def labelled(self, target: Tensor) -> tuple[Self, Tensor]:
        """Without what has no label (−100): tokens, pixels, examples or single labels of many."""
        chosen = labelled(target)
        if chosen.shape == (*self._places, 1):
            chosen = chosen[..., 0]
        if chosen.shape != self._places or bool(chosen.all()):
            return self, target
        return self[chosen], target[chosen]

    def to(self, device: torch.device | str) -> Self:
        return self._map(lambda x: x.to(device))

    def to_pandas(self) -> Any:
        """A table with a row for each example; for each of their tokens or pixels, if those have an answer each."""
        library, places = pandas(), [range(size) for size in self._places]
        index = library.MultiIndex.from_product(places) if len(places) > 1 else library.RangeIndex(len(self))
        return library.DataFrame(self.columns(), index=index)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As ``.safetensors``, all tensors by name, with names of classes as metadata; or as ``.csv``, the table."""
        file = Path(path)
        if file.suffix == ".csv":
            self.to_pandas().to_csv(file)
        elif file.suffix == ".safetensors":
            classes = getattr(self, "classes", None)
            metadata = {"format": "varprop.prediction"} | ({"classes": json.dumps(classes)} if classes else {})
            save_file({name: x.cpu().contiguous().clone() for name, x in self.tensors().items()}, file, metadata)
        else:
            raise InputError(f"{file.name} is neither .safetensors nor .csv: for others, to_pandas().to_parquet(path)")

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, those of parts with a dot: ``logits.mean``."""
        found: dict[str, Tensor] = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            parts = value.tensors() if isinstance(value, Answer) else value._asdict() if _is_moments(value) else {}
            found |= {f"{field.name}.{name}": tensor for name, tensor in parts.items()}
            if isinstance(value, Tensor):
                found[field.name] = value
        return found

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """The same with other tensors."""

        def part(name: str, value: Any) -> Any:
            below = {key.removeprefix(f"{name}."): x for key, x in tensors.items() if key.startswith(f"{name}.")}
            if isinstance(value, Answer):
                return value.with_tensors(below)
            if _is_moments(value):
                return Moments(**below)
            return tensors[name] if isinstance(value, Tensor) else value

        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        return dataclasses.replace(self, **{name: part(name, getattr(self, name)) for name in names})  # type: ignore[type-var]

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return self.with_tensors({name: function(tensor) for name, tensor in self.tensors().items()})


def join(parts: Sequence[Answer]) -> Any:
    """All examples of several answers of one kind as one."""
    if not parts:
        raise InputError("there is nothing to predict: the data are empty, or can be read only once and were")
    tensors = [part.tensors() for part in parts]
    shapes = {tuple(next(iter(found.values())).shape[1:]) for found in tensors}
    if len(shapes) > 1:
        listed = " and ".join(str([*shape]) for shape in sorted(shapes))
        raise InputError(
            f"the answers of some batches have other shapes than those of others, {listed} for one example: "
            "pad all batches to one length, or call the predictor batch by batch"
        )
    return parts[0].with_tensors({name: torch.cat([found[name] for found in tensors]) for name in tensors[0]})


def pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise InputError("a table needs pandas: pip install pandas") from None


def _is_moments(value: Any) -> bool:
    return isinstance(value, Moments)
