"""The arrays that belong to results: scores per example, and test examples to look at; as bytes of an npz file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from varprop.errors import ResultsError

Scores = dict[str, np.ndarray]
"""Per example: confidence, correctness, label, target; held_out_confidence, held_out_correctness."""

_TEST, _HELD_OUT = ("confidence", "correctness", "label", "target"), ("held_out_confidence", "held_out_correctness")


@dataclass(frozen=True)
class Examples:
    """The first N test examples, as thumbnails [N, h, w] or [N, h, w, 3] or as texts, and names of the classes."""

    images: np.ndarray | None = None
    texts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        images = self.images
        if (images is None) == (not self.texts):
            raise ResultsError("examples are images or texts: give one of the two")
        if images is not None and (
            images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,))
        ):
            shape = f"{images.dtype} {list(images.shape)}"
            raise ResultsError(f"thumbnails must be uint8 [N, h, w] or [N, h, w, 3], not {shape}")

    @classmethod
    def read(cls, kept: Scores) -> Examples:
        return cls(kept.get("images"), *(tuple(map(str, kept.get(name, ()))) for name in ("texts", "names")))

    def arrays(self) -> Scores:
        texts = {name: np.array(getattr(self, name), dtype=np.str_) for name in ("texts", "names")}
        return texts if self.images is None else {"images": self.images, **texts}

    def __len__(self) -> int:
        return len(self.texts) if self.images is None else len(self.images)

    def first(self, count: int) -> Examples:
        images = None if self.images is None else self.images[:count]
        return Examples(images, self.texts[:count], self.names)


def pack(arrays: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def unpack(data: bytes, where: str) -> Scores:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, TypeError, AttributeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ResultsError(f"{where} are no whole npz file ({error}); run what they belong to again") from None


def check_scores(scores: Mapping[str, Any], key: tuple[str, str, int], examples: int, where: str = "scores") -> Scores:
    """Arrays of the right shapes. Confidence and correctness are floats, also where bools or integers were given."""
    arrays = {name: np.asarray(value) for name, value in scores.items() if name in _TEST + _HELD_OUT}
    for name in ("confidence", "correctness"):
        if name not in arrays:
            raise ResultsError(f"{where} of {key} lack {name}")
    if ("held_out_confidence" in arrays) != ("held_out_correctness" in arrays):
        raise ResultsError(f"{where} of {key} have only one of {' and '.join(_HELD_OUT)}; give both or none")
    for name, value in arrays.items():
        length = examples if name in _TEST else len(arrays["held_out_confidence"])
        if value.shape != (length,):
            raise ResultsError(f"{where} of {key}: {name} has shape {list(value.shape)}, not [{length}]")
        if value.dtype.kind not in "biuf" or not np.isfinite(value).all():
            raise ResultsError(f"{where} of {key}: {name} must hold finite numbers")
        if name.endswith("correctness") and not ((value >= 0) & (value <= 1)).all():
            raise ResultsError(f"{where} of {key}: {name} must lie in [0, 1]")
    wide = {
        name: value.astype(np.float64)
        for name, value in arrays.items()
        if name.endswith("correctness") or (name.endswith("confidence") and value.dtype.kind != "f")
    }
    return arrays | wide
