"""What predictors return: a dataclass of tensors, with a row of each for every example."""

from __future__ import annotations

import importlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import keystr, register_dataclass, tree_flatten_with_path, tree_map, tree_map_only

from varprop.errors import InputError
from varprop.moments import Moments
from varprop.posterior.file import save_tensors
from varprop.prediction.targets import IGNORED, class_scores, labelled

if TYPE_CHECKING:
    from varprop.prediction.links import ClassLink


class BatchOutput(ABC):
    """A dataclass that is a pytree; examples are the first dimension of each of its tensors."""

    @property
    @abstractmethod
    def _positions(self) -> tuple[int, ...]:
        """The shape of what is predicted: examples, then tokens or pixels if each has a prediction of its own."""

    @abstractmethod
    def columns(self) -> dict[str, Any]:
        """The columns of the table, each with one entry for every position."""

    def __len__(self) -> int:
        return self._positions[0]

    def __getitem__(self, rows: Any) -> Self:
        """Some of the examples: a slice, a mask, indices; or one, still with a dimension for examples."""
        if isinstance(rows, int | np.integer):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"there are {len(self)} examples, and none has the number {rows}")
            rows = slice(rows % len(self), rows % len(self) + 1)
        return tree_map_only(Tensor, lambda x: x[rows], self, is_leaf=_is_names)

    def drop_unlabelled(self, target: Tensor) -> tuple[Self, Tensor]:
        """Without what has no label (−100) that tells whether it is right."""
        chosen = self.judged(target)
        return (self, target) if bool(chosen.all()) else (self[chosen], target[chosen])

    def judged(self, target: Tensor) -> Tensor:
        """Whether each position has a label that tells."""
        raise NotImplementedError

    def to(self, device: torch.device | str) -> Self:
        return tree_map_only(Tensor, lambda x: x.to(device), self, is_leaf=_is_names)

    def to_pandas(self) -> Any:
        """A table with a row for each example; for each token or pixel, if each has a prediction of its own."""
        library, sizes = pandas(), [range(size) for size in self._positions]
        index = library.MultiIndex.from_product(sizes) if len(sizes) > 1 else library.RangeIndex(len(self))
        return library.DataFrame(self.columns(), index=index)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As ``.safetensors``, all tensors by name, with names of classes as metadata; or as ``.csv``, the table."""
        file = Path(path)
        if file.suffix == ".csv":
            self.to_pandas().to_csv(file)
        elif file.suffix == ".safetensors":
            classes = getattr(self, "classes", None)
            metadata = {"format": "varprop.prediction"} | ({"classes": json.dumps(classes)} if classes else {})
            save_tensors({name: x.cpu().contiguous().clone() for name, x in self.tensors().items()}, file, metadata)
        else:
            raise InputError(f"{file.name} is neither .safetensors nor .csv: for others, to_pandas().to_parquet(path)")

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, those of parts with a dot: ``logits.mean``."""
        leaves, _ = tree_flatten_with_path(self, is_leaf=_is_names)
        return {keystr(path).removeprefix("."): leaf for path, leaf in leaves if isinstance(leaf, Tensor)}


def concatenate(parts: Sequence[BatchOutput]) -> Any:
    """All examples of several outputs of one kind as one."""
    if not parts:
        raise InputError("there is nothing to predict: the data are empty, or can be read only once and were")
    if not all(part._positions for part in parts):
        raise InputError("the answer is for a single example: give a batch, such as inputs.unsqueeze(0)")
    shapes = {tuple(next(iter(part.tensors().values())).shape[1:]) for part in parts}
    if len(shapes) > 1:
        listed = " and ".join(str([*shape]) for shape in sorted(shapes))
        raise InputError(
            f"the answers of some batches have other shapes than those of others, {listed} for one example: "
            "pad all batches to one length, or call the predictor batch by batch"
        )

    def join(*leaves: Any) -> Any:
        return torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0]

    return tree_map(join, *parts, is_leaf=_is_names)


def _is_names(value: Any) -> bool:
    """The names of the classes are one leaf: there may be thousands."""
    return type(value) is tuple


def pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise InputError("a table needs pandas: pip install pandas") from None


@dataclass(frozen=True)
class Prediction(BatchOutput):
    """Probabilities of classes (along the last dimension), and the logits they come from.

    Of one logit (``C = 1``, a sigmoid) the label is 1 or 0, by whether p reaches ``threshold`` (½), and the confidence
    p or 1 − p.
    """

    probs: Tensor
    logits: Moments
    link: ClassLink
    classes: tuple[str, ...] | None = None
    """The names of the classes, where the model has some (``config.id2label``) or they were given."""
    threshold: Tensor | None = None
    """Of each answer, where it is not ½."""
    opposite: Tensor | None = None
    """Of sigmoids that were averaged over samples: 1 − p, which a p next to 1 does not tell."""

    @property
    def label(self) -> Tensor:
        """The most probable class."""
        if self.probs.shape[-1] == 1:
            return (self.probs[..., 0] >= (0.5 if self.threshold is None else self.threshold)).long()
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the label."""
        if self.probs.shape[-1] == 1:
            return torch.where(self.label == 1, self.probs[..., 0], 1 - self.probs[..., 0])
        return self.probs.amax(-1)

    @property
    def var(self) -> Tensor:
        """The variance of each logit that comes from the weights."""
        return self.logits.var

    @property
    def names(self) -> list[Any]:
        """The label of each example by name."""
        return self.names_of(self.label)

    def names_of(self, label: Tensor) -> list[Any]:
        """Class indices by name, ``None`` for those below 0."""
        if self.classes is None:
            raise InputError("the classes have no names: give them, vp.fit(model, held_out, classes=[...])")
        classes = self.classes
        return tree_map(lambda index: classes[index] if index >= 0 else None, label.tolist())

    def columns(self) -> dict[str, Any]:
        count = self.probs.shape[-1]
        names = self.classes or tuple(map(str, range(max(2, count))))
        shown = names[1:] if count == 1 else names
        return {
            "label": self.label_column(self.label),
            "confidence": self.confidence.flatten().cpu().numpy(),
            **{f"p({name})": p.cpu().numpy() for name, p in zip(shown, self.probs.reshape(-1, count).T, strict=True)},
        }

    def label_column(self, label: Tensor) -> Any:
        """Names where there are some, else indices."""
        return label.flatten().cpu().numpy() if self.classes is None else self.names_of(label.flatten())

    @property
    def _positions(self) -> tuple[int, ...]:
        return self.probs.shape[:-1]

    def correctness(self, target: Tensor) -> Tensor:
        """How right the labels are, in [0, 1]: 0 or 1 for class indices; for a score per class, the label's score."""
        if not bool(self.judged(target).all()):
            raise InputError(f"{IGNORED} marks what has no label, neither right nor wrong: leave those examples out")
        if not self.is_scored(target):
            return (self.label == target).to(self.probs.dtype)
        scores, _ = class_scores(self.probs, target)
        return self._of_label(scores, 1 - scores)

    def judged(self, target: Tensor) -> Tensor:
        if self.is_scored(target):
            said = labelled(target).view(self.probs.shape)
            return self._of_label(said, said)
        if target.shape != self._positions or target.is_floating_point():
            raise InputError(
                f"targets of shape {list(target.shape)} ({target.dtype}) for probabilities {list(self.probs.shape)}: "
                f"class indices are integers of {list(self._positions)}, scores of every class have the shape of the "
                "probabilities, and numbers that were measured need a regression, link=vp.links.Gaussian()"
            )
        return labelled(target)

    def is_scored(self, target: Tensor) -> bool:
        """Is it a score for each class, and not the index of one?"""
        return target.shape in (self.probs.shape, self.probs.squeeze(-1).shape)

    def _of_label(self, scores: Tensor, against: Tensor) -> Tensor:
        """The score of each label; of a single class ``against`` it where the label is 0."""
        if self.probs.shape[-1] == 1:
            return torch.where(self.label == 1, scores[..., 0], against[..., 0])
        return scores.gather(-1, self.label.unsqueeze(-1)).squeeze(-1)


def normal_reach(level: float) -> float:
    """How many standard deviations an interval around the mean of a normal distribution takes to hold ``level``."""
    return NormalDist().inv_cdf(0.5 + level / 2)


@dataclass(frozen=True)
class Regression(BatchOutput):
    """A Gaussian for each output: ``mean``, and ``var`` with the observation noise in it."""

    mean: Tensor
    var: Tensor
    logits: Moments
    reach: Callable[[float], float] = normal_reach
    """From a level to how far an interval reaches, in standard deviations: ``Conformal`` gives another."""

    @property
    def std(self) -> Tensor:
        return self.var.sqrt()

    @property
    def confidence(self) -> Tensor:
        """Minus the standard deviation; over several outputs, minus its root mean square."""
        return -self.var.flatten(1).mean(1).sqrt() if self.var.ndim > 1 else -self.std

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Bounds between which the observation lies with probability ``level``."""
        if not 0 < level < 1:
            raise InputError(f"a level lies between 0 and 1, {level} does not")
        reach = self.std * self.reach(level)
        return self.mean - reach, self.mean + reach

    def columns(self) -> dict[str, Any]:
        count = self.mean[0].numel()
        found: dict[str, Any] = {}
        for name, values in (("mean", self.mean), ("std", self.std)):
            flat = values.reshape(len(self), count).T.cpu().numpy()
            found |= {name if count == 1 else f"{name}({i})": column for i, column in enumerate(flat)}
        return found

    @property
    def _positions(self) -> tuple[int, ...]:
        return self.mean.shape[:1]


for _kind in (Prediction, Regression):
    register_dataclass(_kind)
