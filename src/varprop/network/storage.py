"""A network's folder: ``config.json`` says what it is, ``model.safetensors`` holds its tensors.

A network saved over another one takes its place at one instant: the new tensors are written under a name of their own,
then ``config.json`` is replaced, whose checksum tells which file of tensors it means, and then the new file gets the
name of the old one. Other files in the folder stay. One process writes at a time.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from varprop.errors import NetworkFileError, PosteriorError
from varprop.posterior.file import replacing, save_tensors

CONFIG, WEIGHTS, PENDING = "config.json", "model.safetensors", ".model.safetensors.new"
FORMAT, VERSION = "varprop.network", 1
GRAPHS = "graphs"  # a note in the file of tensors
DISK = "disk"  # a device: the CPU, with weights that are read from their file as they are used
ATTEMPTS = 100  # to read a folder that another process saves to


@contextmanager
def reported(doing: str) -> Iterator[None]:
    """Whatever goes wrong with files is one kind of error, which says what was being done."""
    try:
        yield
    except (NetworkFileError, PosteriorError, SafetensorError, OSError) as error:
        raise NetworkFileError(f"{doing}: {error}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """What ``config.json`` says, if it is one of ours."""
    if not folder.is_dir():
        raise NetworkFileError("it is a file, not a folder" if folder.exists() else "there is no such folder")
    if not (folder / CONFIG).is_file():
        raise NetworkFileError(f"it has no {CONFIG}")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise NetworkFileError(f"its {CONFIG} is not JSON ({error})") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise NetworkFileError(f"its {CONFIG} is not that of a propagated network")
    if config.get("version") != VERSION:
        raise NetworkFileError(
            f"its format has version {config.get('version')!r}, and this varprop reads version {VERSION}: "
            "a newer varprop may have written it"
        )
    return {"temperature": 1.0} | config  # which networks of version 0.1 do not have


def entry(record: Mapping[str, Any], key: str, kind: type) -> Any:
    """What ``config.json`` says about ``key``, which must be there and of this type."""
    if not isinstance(record.get(key), kind):
        raise NetworkFileError(f"its {CONFIG} lacks a usable {key!r}")
    return record[key]


def claim(folder: Path) -> None:
    """Make the folder, or make sure that nothing but a network of ours will be replaced in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / CONFIG).exists():
        try:
            config = read_config(folder)
        except NetworkFileError as error:
            raise NetworkFileError(f"the folder holds something else ({error}): give a new one") from error
        if _matches(folder / PENDING, entry(config, "weights", dict)):
            (folder / PENDING).replace(folder / WEIGHTS)  # what an interrupted save left to do
    elif (folder / WEIGHTS).exists():
        raise NetworkFileError(f"the folder holds something else (a {WEIGHTS} without {CONFIG}): give a new one")


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], graphs: str = "") -> None:
    """Write both files to a claimed folder; ``graphs`` is text that comes with the tensors, under their checksum."""
    pending = folder / PENDING
    with replacing(pending) as temporary:
        _save(tensors, temporary, {"format": FORMAT} | ({GRAPHS: graphs} if graphs else {}))
    weights = {"sha256": digest(pending), "bytes": pending.stat().st_size}
    # The order of dimensions in memory, where it is not the usual one (channels last): kernels depend on it.
    layout = {key: list(tensor.dim_order()) for key, tensor in tensors.items() if not tensor.is_contiguous()}
    text = json.dumps({**config, "layout": layout, "weights": weights}, indent=2)
    try:
        with replacing(folder / CONFIG) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    except OSError:
        pending.unlink(missing_ok=True)
        raise
    pending.replace(folder / WEIGHTS)


def _save(tensors: Mapping[str, Tensor], path: Path, notes: dict[str, str]) -> None:
    """As safetensors wants them: in main memory, contiguous, and each with memory of its own."""
    stored: dict[str, Tensor] = {}
    seen: set[int] = set()
    for key, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        place = flat.untyped_storage().data_ptr()
        stored[key] = flat.clone() if place in seen else flat
        seen.add(place)
    try:
        save_tensors(stored, path, notes)
    except (KeyError, ValueError, RuntimeError) as error:  # dtypes and layouts that safetensors does not know
        raise NetworkFileError(f"some tensors cannot be stored: {error}") from error


def read(folder: Path, device: torch.device | str) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """``config.json``, tensors and graphs it was written with, read again while another process saves there."""
    failed: dict[str, Any] = {}
    for attempt in range(ATTEMPTS):
        config = read_config(folder)
        try:
            tensors, graphs = read_tensors(folder, config, device)
        except (NetworkFileError, SafetensorError, OSError, RuntimeError):  # the last is torch's, of a file that went
            if read_config(folder) == config == failed:  # twice, and nobody is saving: that is how it is
                raise
            failed = config
        else:
            if read_config(folder) == config:
                return config, tensors, graphs
        time.sleep(random.uniform(0, 0.01 * (attempt + 1)))
    raise NetworkFileError("another process keeps saving there: load it afterwards")


def read_tensors(folder: Path, config: Mapping[str, Any], device: torch.device | str) -> tuple[dict[str, Tensor], str]:
    """All tensors, and graphs if there are any, from a file that is the one ``config.json`` was written with; on
    ``DISK`` tensors stay in that file.
    """
    layout = entry(config, "layout", dict)
    with torch.inference_mode(False), safe_open(_weights(folder, config), framework="pt", device="cpu") as file:
        found = {key: _laid_out(file.get_tensor(key), key, layout.get(key)) for key in sorted(file.keys())}
        # Memory of torch's own, not that of the file: how it is aligned decides the last bits of some kernels.
        moved = found if device == DISK else {key: tensor.to(device, copy=True) for key, tensor in found.items()}
        return moved, (file.metadata() or {}).get(GRAPHS, "")


def _laid_out(tensor: Tensor, key: str, order: Any) -> Tensor:
    if order is None:
        return tensor
    dims = list(range(tensor.ndim))
    if not isinstance(order, list) or not all(type(dim) is int for dim in order) or sorted(order) != dims:
        raise NetworkFileError(f"its {CONFIG} gives {key!r} a layout it cannot have")
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in dims])


def _weights(folder: Path, config: Mapping[str, Any]) -> Path:
    """The file of tensors that ``config.json`` means, whole and unchanged."""
    weights = entry(config, "weights", dict)
    for file in (folder / PENDING, folder / WEIGHTS):
        if _matches(file, weights):
            return file
    if not (folder / WEIGHTS).is_file():
        raise NetworkFileError(f"it has no {WEIGHTS}")
    size = (folder / WEIGHTS).stat().st_size
    if size != weights.get("bytes"):
        raise NetworkFileError(f"{WEIGHTS} has {size} bytes, and had {weights.get('bytes')} when it was saved")
    raise NetworkFileError(f"the contents of {WEIGHTS} changed after it was saved (checksum mismatch)")


def _matches(file: Path, weights: Mapping[str, Any]) -> bool:
    return file.is_file() and file.stat().st_size == weights.get("bytes") and digest(file) == weights.get("sha256")


def digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
