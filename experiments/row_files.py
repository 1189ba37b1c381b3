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
from numpy.typing import NDArray
from torch import Tensor

from varprop.evaluation.evaluated import Evaluation

DROPPED = 1 << 5
"""What is left out of the digits of a rounded number."""
LARGEST = 60000.0
"""With room to round up in float16."""


def read_rows(file: Path) -> list[dict[str, Any]]:
    """None of a file that is not there yet."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def add_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Each is written when it is there."""
    with file.open("a") as lines:
        for row in rows:
            lines.write(json.dumps(row, separators=(",", ":")) + "\n")
            lines.flush()


def packed(found: Evaluation) -> dict[str, Any]:
    """Which examples were right, a bit each, with a checksum of the labels, and the other scores of each example,
    rounded; nothing where answers are half right.
    """
    right = found.correctness.numpy()
    if not np.isin(right, (0, 1)).all():
        return {}
    labels = zlib.crc32(found.target.numpy().astype("<i8").tobytes())
    bits = base64.b64encode(np.packbits(right.astype(bool)).tobytes()).decode()
    doubt = 1 - found.confidence.double()  # near 1, a rounded confidence would be the same for all
    scores = {"doubt": doubt, "nll": found.scores["nll"], "brier": found.scores["brier"]}
    rounded = {name: _rounded(x.double().numpy()) for name, x in scores.items()}
    return {"right": {"examples": len(right), "labels": f"{labels:08x}", "bits": bits}, "scores": rounded}


def unpacked(right: Mapping[str, Any]) -> Tensor:
    """Of each example, whether it was right."""
    bits = np.frombuffer(base64.b64decode(right["bits"]), np.uint8)
    return torch.from_numpy(np.unpackbits(bits, count=right["examples"])).bool()


def unpacked_scores(row: Mapping[str, Any]) -> dict[str, Tensor]:
    """``confidence``, ``correctness``, ``nll`` and ``brier`` of each example, to one part in 64 from 6e-5 on."""
    found = {name: _read(coded) for name, coded in row["scores"].items()}
    return {"confidence": 1 - found.pop("doubt"), "correctness": unpacked(row["right"]).double(), **found}


def _rounded(x: NDArray[np.float64]) -> str:
    """As float16 with five of its ten digits: the larger bytes of all, then the smaller ones."""
    bits = (np.clip(x, 0, LARGEST).astype("<f2").view("<u2") + (DROPPED >> 1)) & ~np.uint16(DROPPED - 1)
    return base64.b64encode(zlib.compress(bits.view(np.uint8).reshape(-1, 2).T.tobytes(), 9)).decode()


def _read(coded: str) -> Tensor:
    parts = np.frombuffer(zlib.decompress(base64.b64decode(coded)), np.uint8).reshape(2, -1)
    return torch.from_numpy(np.ascontiguousarray(parts.T).view("<f2")[:, 0].astype(np.float64))
