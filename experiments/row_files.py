"""Rows as lines of JSON in a file, which grows while they are made."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varprop.evaluation.evaluated import Evaluation


def read_rows(file: Path) -> list[dict[str, Any]]:
    """None of a file that is not there yet."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def add_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Each is written when it is there."""
    with file.open("a") as lines:
        for row in rows:
            lines.write(json.dumps(row) + "\n")
            lines.flush()


def packed(found: Evaluation) -> dict[str, Any]:
    """Which examples were right, a bit each, and a checksum of the labels; nothing where answers are half right."""
    right = found.correctness.numpy()
    if not np.isin(right, (0, 1)).all():
        return {}
    labels = zlib.crc32(found.target.numpy().astype("<i8").tobytes())
    bits = base64.b64encode(np.packbits(right.astype(bool)).tobytes()).decode()
    return {"right": {"examples": len(right), "labels": f"{labels:08x}", "bits": bits}}


def unpacked(right: Mapping[str, Any]) -> Tensor:
    """Of each example, whether it was right."""
    bits = np.frombuffer(base64.b64decode(right["bits"]), np.uint8)
    return torch.from_numpy(np.unpackbits(bits, count=right["examples"])).bool()
