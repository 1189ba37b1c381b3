"""The optimizer's state in a checkpoint of Hugging Face's Trainer or of Lightning. Nothing is unpickled."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from varprop.errors import OptimizerStateError, PosteriorFileError

_TRAINER = "a checkpoint of Hugging Face's Trainer is a folder with optimizer.pt and trainer_state.json"
_LIGHTNING = "a checkpoint of Lightning is a file with 'optimizer_states'"
# What Trainer exempts from weight decay, beside everything in an nn.LayerNorm.
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def read_checkpoint(path: str | os.PathLike[str], model: nn.Module) -> tuple[Mapping[str, Any], list[list[str]]]:
    """Its state dict, and the names in each group where the trainer's rule for them is known."""
    path = Path(path)
    if path.is_dir():
        return _of_trainer(path), _trainer_groups(model)
    return _of_lightning(path), []


def _of_trainer(folder: Path) -> Mapping[str, Any]:
    missing = [name for name in ("optimizer.pt", "trainer_state.json") if not (folder / name).is_file()]
    if missing:
        below = sorted(folder.glob("checkpoint-*"), key=lambda each: (len(each.name), each.name))
        meant = f"; did you mean {below[-1]}?" if below else ""
        raise PosteriorFileError(
            f"{folder} has no {' and no '.join(missing)}: {_TRAINER}, written on one device{meant} (DeepSpeed and FSDP "
            "write other files, which are not read; save_only_model=True leaves the optimizer out)"
        )
    try:
        step = json.loads((folder / "trainer_state.json").read_text())["global_step"]
    except (ValueError, KeyError, TypeError) as error:
        raise PosteriorFileError(f"{folder / 'trainer_state.json'} is damaged, or not of Trainer: {error!r}") from error
    if not step:
        raise OptimizerStateError(f"{folder} was written before the first step: there is no curvature in it")
    return _loaded(folder / "optimizer.pt", _TRAINER)


def _of_lightning(path: Path) -> Mapping[str, Any]:
    content = _loaded(path, _LIGHTNING)
    states = content.get("optimizer_states")
    if not isinstance(states, list) or not states:
        there = ", ".join(map(repr, list(content)[:8])) or "nothing"
        raise PosteriorFileError(
            f"{path} holds {there}: {_LIGHTNING} (not with save_weights_only=True). Of another checkpoint pass the "
            'optimizer\'s part: torch.load(path, weights_only=True)["optimizer"]'
        )
    if len(states) > 1:
        raise PosteriorFileError(
            f"{path} holds {len(states)} optimizers: pass the state of one, "
            'torch.load(path, weights_only=True)["optimizer_states"][0]'
        )
    return states[0]


def _loaded(path: Path, wanted: str) -> Mapping[str, Any]:
    if not path.is_file():
        raise PosteriorFileError(f"there is no {path}: {wanted}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 (whatever a damaged or hostile file brings about)
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PosteriorFileError(
            f"{path} is not read, because it is damaged or holds more than tensors and plain values, which could run "
            f"code: {first}. Load it where you trust it, and pass the optimizer's state_dict()."
        ) from None
    if not isinstance(content, Mapping):
        raise PosteriorFileError(f"{path} holds a {type(content).__name__}: {wanted}")
    return content


def _trainer_groups(model: nn.Module) -> list[list[str]]:
    """Trainable parameters with weight decay and those without, each in the order of the model."""
    normed = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, nn.LayerNorm)
        for name, _ in module.named_parameters()
    }
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    exempt = {name for name in names if name in normed or _NO_DECAY.search(name.lower())}
    return [[name for name in names if name not in exempt], [name for name in names if name in exempt]]
