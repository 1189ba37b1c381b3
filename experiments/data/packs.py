"""Packs: npz files with the bytes of encoded images one behind the other, where each ends, and labels."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.faults import DataError


def read_pack(path: Path, images: str = "images") -> tuple[list[bytes], Tensor]:
    """The encoded images (or sheets of them) and the labels."""
    data, ends, labels = _arrays(path, images, "ends", "labels")
    _refuse_other(path, ends=ends, labels=labels)
    if data.dtype != np.uint8:
        raise DataError(f"{path} is not a whole pack of images: its {images} are {data.dtype}, not bytes")
    return _divided(data, ends, path), torch.from_numpy(labels.astype(np.int64))


def _refuse_other(path: Path, **arrays: np.ndarray) -> None:
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(
                f"{path} is not a whole pack of images: its {name} are {array.dtype}, {array.ndim}-dimensional"
            )


def _divided(data: np.ndarray, ends: np.ndarray, path: Path) -> list[bytes]:
    _refuse_other(path, ends=ends)
    starts = [0, *ends[:-1].tolist()]
    if not len(ends) or ends[-1] != data.size or any(start >= end for start, end in zip(starts, ends, strict=True)):
        raise DataError(f"{path} is not a whole pack of images: its ends do not divide its {data.size} bytes")
    whole = data.tobytes()
    return [whole[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]


def named_images(path: Path) -> tuple[list[bytes], list[str]]:
    """The encoded images, and a name of each."""
    data, ends, names = _arrays(path, "images", "ends", "names")
    encoded = _divided(data, ends, path)
    if len(names) != len(encoded):
        raise DataError(f"{path} holds {len(encoded)} images and {len(names)} names")
    return encoded, names.tolist()


def one_each(path: Path) -> tuple[list[bytes], Tensor]:
    """A pack in which every image has its own bytes and a label."""
    encoded, labels = read_pack(path)
    if len(encoded) != len(labels):
        raise DataError(f"{path} holds {len(encoded)} images and {len(labels)} labels")
    return encoded, labels


def _arrays(path: Path, *names: str) -> list[np.ndarray]:
    try:
        with zipfile.ZipFile(path) as pack:
            # Whole members, not np.load on the file: that stops at the last value, maybe before the checksum.
            members = [pack.read(f"{name}.npy") for name in names]
        return [np.load(io.BytesIO(member), allow_pickle=False) for member in members]
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        # RuntimeError: damage may look like encryption or an unknown compression.
        raise DataError(f"{path} is not a whole pack of images: {error}; copy it again") from None
