"""From raw examples, which nobody has checked, to batches and answers: texts, images, numbers."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varprop.deployment.artifact import Artifact, Input
from varprop.deployment.exporting import import_optional
from varprop.errors import InputError
from varprop.prediction.predictor_config import is_tokenizer

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
Example = dict[str, Tensor]
"""The inputs of one example, without a batch dimension."""
Answer = dict[str, Any]
"""The outputs for one example by name, as JSON."""


@dataclass(frozen=True)
class Limits:
    """On one example: bytes of an image file, its pixels, characters of a text, entries of an array."""

    bytes: int = 64 * 2**20
    pixels: int = 64_000_000
    characters: int = 1_000_000
    entries: int = 50_000_000


class Preprocessor:
    """Reads examples as an artifact takes them, and has it answer them.

    An example is a mapping with ``image`` (the bytes of a file), or ``text``, or an array for each input by its name.
    """

    def __init__(self, artifact: Artifact, limits: Limits | None = None) -> None:
        self.artifact, self.limits = artifact, limits or Limits()
        self.inputs = {each.name: each for each in artifact.inputs}
        self.raw: str | None = None
        """What its processor reads, if it has one: ``text`` or ``image``."""
        if artifact.processor is not None:
            self.raw = "text" if is_tokenizer(artifact.processor) else "image"

    @property
    def columns(self) -> list[str]:
        """What an example should have."""
        return [self.raw] if self.raw else list(self.inputs)

    def read(self, example: Mapping[str, Any]) -> Example:
        """The inputs of one example; ``InputError`` says what is wrong with it."""
        if example.get("text") is not None:
            return self._text(example["text"])
        if example.get("image") is not None:
            return self._image(example["image"])
        missing = [name for name in self.inputs if example.get(name) is None]
        if missing:
            raise InputError(f"an example lacks {', '.join(missing)}: it has {', '.join(example) or 'nothing'}")
        return {name: self._array(example[name], each) for name, each in self.inputs.items()}

    def batches(self, examples: Sequence[Example]) -> list[tuple[list[int], dict[str, Tensor]]]:
        """As few batches as they make, each with the numbers of its examples: texts are padded, others are alike."""
        if self.raw == "text" and all("input_ids" in example for example in examples):
            return [([*range(len(examples))], self._padded(examples))]
        groups: dict[Any, list[int]] = {}
        for number, example in enumerate(examples):
            groups.setdefault(tuple(x.shape for x in example.values()), []).append(number)
        return [
            (chosen, {name: torch.stack([examples[i][name] for i in chosen]) for name in self.inputs})
            for chosen in groups.values()
        ]

    def answers(self, examples: Sequence[Example]) -> list[Answer]:
        """One for each example: labels by name where they have names, of a regression lists of numbers."""
        found: list[Answer] = [{} for _ in examples]
        for numbers, batch in self.batches(examples) if examples else []:
            outputs = self.artifact.answer(batch)
            if any(outputs[name].ndim > 1 for name in ("label", "abstain") if name in outputs):
                raise InputError("this is for models with one answer for each example, not for each token or pixel")
            columns = {name: value.tolist() for name, value in outputs.items() if not name.startswith("logit")}
            for name in {"prediction", "std"} & columns.keys():
                columns[name] = outputs[name].reshape(len(numbers), -1).tolist()
            if self.artifact.classes and "label" in columns:
                columns["label"] = [self.artifact.classes[label] for label in columns["label"]]
            for index, number in enumerate(numbers):
                found[number] = {name: values[index] for name, values in columns.items()}
        return found

    def _padded(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        rows = [{name: x.tolist() for name, x in example.items()} for example in examples]
        with warnings.catch_warnings(action="ignore"):  # that padding while tokenizing would be faster
            found = self.artifact.processor.pad(rows, return_tensors="pt")
        return {name: found[name].to(each.dtype) for name, each in self.inputs.items()}

    def _text(self, text: Any) -> Example:
        if self.raw != "text":
            raise InputError(f"this model does not read texts: give {' and '.join(self.columns)}")
        if not isinstance(text, str) or len(text) > self.limits.characters:
            raise InputError(f"a text is a string of at most {self.limits.characters:,} characters")
        found = self._processed(text, truncation=True)
        return self._named({name: torch.tensor(value) for name, value in found.items()})

    def _image(self, file: Any) -> Example:
        if self.raw != "image":
            raise InputError(f"this model does not read images: give {' and '.join(self.columns)}")
        found = self._processed(open_image(file, self.limits), return_tensors="pt")
        return self._named({name: value[0] for name, value in found.items()})

    def _processed(self, raw: Any, **options: Any) -> Mapping[str, Any]:
        try:
            return self.artifact.processor(raw, **options)
        except Exception as error:  # of any kind: an image of one pixel, a text of odd characters
            kind = type(self.artifact.processor).__name__
            raise InputError(f"its {kind} cannot take this example: {error}") from error

    def _named(self, found: Mapping[str, Tensor]) -> Example:
        """What the processor calls its only tensor is of no matter to a model that takes only one."""
        if len(self.inputs) == len(found) == 1:
            found = dict(zip(self.inputs, found.values(), strict=True))
        if missing := self.inputs.keys() - found.keys():
            kind = type(self.artifact.processor).__name__
            raise InputError(f"its {kind} does not give {', '.join(sorted(missing))}, which the model takes")
        return {name: self._array(found[name], each) for name, each in self.inputs.items()}

    def _array(self, value: Any, wanted: Input) -> Tensor:
        array = value.numpy() if isinstance(value, Tensor) else _numbers(value, wanted.name, self.limits.entries)
        fits = len(array.shape) == len(wanted.sizes) and all(
            size in (None, given) for given, size in zip(array.shape, wanted.sizes, strict=True)
        )
        if not fits:
            expected = ["any" if size is None else size for size in wanted.sizes]
            raise InputError(f"{wanted.name} has the shape {[*array.shape]}, not [{', '.join(map(str, expected))}]")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{wanted.name} holds NaN or infinity")
        if array.dtype.kind == "f" and not wanted.dtype.is_floating_point:
            raise InputError(f"{wanted.name} takes whole numbers, {str(wanted.dtype).removeprefix('torch.')}")
        return torch.from_numpy(np.array(array, order="C")).to(wanted.dtype)


def open_image(file: Any, limits: Limits) -> Any:
    """An image in RGB, whose header is looked at before its pixels are decoded."""
    if not isinstance(file, bytes) or len(file) > limits.bytes:
        raise InputError(f"an image is the bytes of a file, at most {limits.bytes:,} of them")
    library = import_optional("PIL.Image", "score")
    try:
        with warnings.catch_warnings(action="ignore"), library.open(io.BytesIO(file), formats=FORMATS) as picture:
            if picture.width * picture.height > limits.pixels:
                raise InputError(f"an image has {picture.width} × {picture.height} pixels, more than {limits.pixels:,}")
            return picture.convert("RGB")
    except InputError:
        raise
    except library.UnidentifiedImageError:
        raise InputError(f"an image cannot be read: it is none of {', '.join(FORMATS)}") from None
    except Exception as error:  # decoders have errors of many kinds
        raise InputError(f"an image cannot be read: {error}") from error


def _numbers(value: Any, name: str, entries: int) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} is not an array of numbers")
    if array.size > entries:
        raise InputError(f"{name} has {array.size:,} entries, more than {entries:,}")
    return array
