"""Files of a results folder: locked while they are written to, whole or absent after a kill, never unpickled."""

from __future__ import annotations

import os
import re
import sys
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from varprop.errors import ResultsError
from varprop.evaluation.rows import cut_short

Scores = dict[str, np.ndarray]


def lock(file: IO[bytes]) -> None:
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file releases it


def repair(file: IO[bytes]) -> None:
    """Make the file end with a newline: complete a last line that is whole, drop one that was cut short."""
    file.seek(0)
    text = file.read()
    start = text.rfind(b"\n") + 1
    if cut_short(text[start:].decode(errors="replace")):
        file.truncate(start)
    elif start < len(text):
        file.write(b"\n")


def slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".") or "_"


def save(path: Path, arrays: Mapping[str, Any]) -> None:
    """Readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> Scores:
    try:
        # Opened here, because NumPy leaves a file open that turns out not to be an npz.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise ResultsError(f"{path} is missing, though rows.jsonl names it; run what it held again") from None
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ResultsError(f"{path} is not a whole npz file ({error}); run what it held again") from None
