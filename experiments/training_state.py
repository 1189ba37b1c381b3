"""Where a training stands, in a file: the tensors of one network, and its counters as JSON in the header."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.optim import Optimizer


@dataclass(frozen=True)
class Checkpoint:
    """One network after ``done`` epochs."""

    done: int
    step: int
    draws: int
    tensors: dict[str, Tensor]


def save(path: Path, key: str, done: int, optimizer: Optimizer, settings: dict[str, Any], row: int) -> None:
    """One row of a group. Readers see the old file or the whole new one."""
    rows = settings["params"][0]
    state = optimizer.state[rows]
    kept = {name: entry[row] for name, entry in state.items() if isinstance(entry, Tensor) and entry.ndim}
    tensors = {"mean": rows.detach()[row], **kept}
    header = {"key": key, "done": done, "step": int(state["step"]), "draws": settings.get("draws", 0)}
    scratch = path.with_suffix(".part")
    data = to_bytes({name: tensor.contiguous() for name, tensor in tensors.items()}, {"state": json.dumps(header)})
    scratch.write_bytes(data)  # not save_file, whose errors do not say that it is a matter of permissions or space
    scratch.replace(path)


def load(path: Path, key: str) -> Checkpoint | None:
    """None if there is no file, or a broken one, or one of another training (``key``)."""
    if not path.is_file():
        return None
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            header = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(header, dict) or header.get("key") != key:
        return None
    return Checkpoint(header["done"], header["step"], header["draws"], tensors)


def restore(optimizer: Optimizer, found: Sequence[Sequence[Checkpoint]]) -> None:
    """Bring each group to where the checkpoints of its rows were written."""
    state = optimizer.state_dict()
    for index, rows in enumerate(found):
        tensors = {name: torch.stack([row.tensors[name] for row in rows]) for name in rows[0].tensors}
        optimizer.param_groups[index]["params"][0].data.copy_(tensors.pop("mean"))
        state["state"][index] = {"step": rows[0].step, **tensors}
        if "draws" in state["param_groups"][index]:  # of IVON
            state["param_groups"][index]["draws"] = rows[0].draws
    optimizer.load_state_dict(state)
