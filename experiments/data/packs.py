"""Packs: npz files with the bytes of encoded images one behind the other, where each ends, and labels or names."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.exceptions import DataError


def read_pack(path: Path, images: str = "images") -> tuple[list[bytes], Tensor]:
    """The encoded images (or sheets of them) and the labels."""
    encoded, labels = _read(path, images, "labels")
    _check_whole_numbers(path, "labels", labels)
    return encoded, torch.from_numpy(labels.astype(np.int64))


def one_each(path: Path) -> tuple[list[bytes], Tensor]:
    """A pack in which every image has its own bytes and a label."""
    encoded, labels = read_pack(path)
    if len(encoded) != len(labels):
        raise DataError(f"{path} holds {len(encoded)} images and {len(labels)} labels")
    return encoded, labels


def named_images(path: Path) -> tuple[list[bytes], list[str]]:
    """The encoded images, and a name of each."""
    encoded, names = _read(path, "images", "names")
    if len(names) != len(encoded):
        raise DataError(f"{path} holds {len(encoded)} images and {len(names)} names")
    return encoded, names.tolist()


def _read(path: Path, *names: str) -> tuple[list[bytes], np.ndarray]:
    data, ends, others = _arrays(path, names[0], "ends", names[1])
    _check_whole_numbers(path, "ends", ends)
    if data.dtype != np.uint8:
        raise DataError(f"{path} is not a whole pack of images: its {names[0]} are {data.dtype}, not bytes")
    starts = [0, *ends[:-1].tolist()]
    if not len(ends) or ends[-1] != data.size or any(start >= end for start, end in zip(starts, ends, strict=True)):
        raise DataError(f"{path} is not a whole pack of images: its ends do not divide its {data.size} bytes")
    whole = data.tobytes()
    return [whole[start:end] for start, end in zip(starts, ends.tolist(), strict=True)], others


def _arrays(path: Path, *names: str) -> list[np.ndarray]:
    try:
        with zipfile.ZipFile(path) as pack:
            # Whole members, not np.load on the file: that stops at the last value, maybe before the checksum.
            members = [pack.read(f"{name}.npy") for name in names]
        return [np.load(io.BytesIO(member), allow_pickle=False) for member in members]
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        # RuntimeError: damage may look like encryption or an unknown compression.
        raise DataError(f"{path} is not a whole pack of images: {error}; copy it again") from None


def _check_whole_numbers(path: Path, name: str, array: np.ndarray) -> None:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"{path} is not a whole pack of images: its {name} are {array.dtype}, {array.ndim}-dimensional")
