"""A posterior on disk: one safetensors file, nothing that could run code."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from varprop.errors import PosteriorError, PosteriorFileError
from varprop.moments import Moments
from varprop.posterior.tensors import checked

STALE = 600.0
"""Seconds after which a temporary file that nobody wrote to is taken for one that a killed process left."""
_FORMAT, _VERSION = "varprop.posterior", "1"


def write(path: str | os.PathLike[str], moments: Mapping[str, Moments]) -> None:
    path = Path(path)
    if not path.parent.is_dir():
        raise PosteriorFileError(f"cannot save {path}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise PosteriorFileError(f"cannot save {path}: it is a folder; add a file name, e.g. posterior.safetensors")
    tensors = {f"mean.{name}": pair.mean for name, pair in moments.items()}
    tensors |= {f"var.{name}": pair.var for name, pair in moments.items()}
    metadata = {"format": _FORMAT, "version": _VERSION, "sha256": _digest(tensors)}
    try:
        with replacing(path) as temporary:
            save_tensors({key: tensor.contiguous() for key, tensor in tensors.items()}, temporary, metadata)
    except (OSError, SafetensorError) as error:
        raise PosteriorFileError(f"cannot save {path}: {error}") from error


def save_tensors(tensors: Mapping[str, Tensor], path: Path, notes: Mapping[str, str]) -> None:
    """As ``save_file``, which puts notes in a random order, but the same bytes for the same contents."""
    save_file(dict(tensors), path, dict(notes))
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size)) | {"__metadata__": dict(notes)}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(text) <= size
        file.seek(8)
        file.write(text.ljust(size))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary neighbour of ``path`` to write to, renamed at the end: readers see the old file or the whole new one.

    It gets the permissions of any new file; safetensors by itself writes files that only their owner can read.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    _tidy(path)
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())  # else a power cut may keep the new name and lose what it names
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _tidy(path: Path) -> None:
    """Remove what killed processes left behind; a file that was written to just now belongs to one that runs."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):  # another process may be tidying too
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()


def read(path: str | os.PathLike[str]) -> dict[str, Moments]:
    metadata, tensors = contents(path)
    if metadata.get("format") != _FORMAT:
        raise PosteriorFileError(f"cannot load {path}: not a posterior written by save (no format={_FORMAT!r} in it)")
    if (version := metadata.get("version")) != _VERSION:
        raise PosteriorFileError(f"cannot load {path}: format version {version!r} needs another version of varprop")
    # Other programs may write the format without a checksum; where there is one, it must fit.
    if "sha256" in metadata and metadata["sha256"] != _digest(tensors):
        raise PosteriorFileError(f"cannot load {path}: its contents changed after it was saved (checksum mismatch)")
    return _split(path, tensors)


def contents(path: str | os.PathLike[str], remedy: str = "") -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of any safetensors file; ``remedy`` is for a file of another format."""
    path = Path(path)
    if not path.is_file():
        reason = "it is a folder, name the file in it" if path.is_dir() else "there is no such file"
        raise PosteriorFileError(f"cannot load {path}: {reason}")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return file.metadata() or {}, {key: file.get_tensor(key) for key in list(file.keys())}
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise PosteriorFileError(f"cannot load {path}: not a whole safetensors file ({error}){remedy}") from error


def _split(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> dict[str, Moments]:
    parts: dict[str, dict[str, Tensor]] = {"mean": {}, "var": {}}
    for key, tensor in tensors.items():
        role, dot, name = key.partition(".")
        if role not in parts or not dot:
            raise PosteriorFileError(f"cannot load {path}: unexpected tensor {key!r}, not mean.<name> or var.<name>")
        parts[role][name] = tensor
    try:
        return checked(parts["mean"], parts["var"])
    except PosteriorError as error:
        raise PosteriorFileError(f"cannot load {path}: {error}") from error


def _digest(tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for key in sorted(tensors):
        tensor = tensors[key].detach().cpu().contiguous()
        total.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
