"""Training with IVON, epoch by epoch; after a kill it goes on with the epoch that was under way."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from varprop.data import Split
from varprop.demo.recipes import Recipe
from varprop.optim import IVON
from varprop.posterior import Posterior


def train(model: nn.Module, data: Split, recipe: Recipe, seed: int, checkpoint: Path, *, progress: bool) -> Posterior:
    """The posterior after all epochs, warm-up and cosine decay of the rate; ``checkpoint`` is written after each."""
    device = next(model.parameters()).device
    images, labels = data.inputs().to(device), data.labels.to(device)
    optimizer = IVON(model.parameters(), **recipe.ivon)
    steps = recipe.epochs * math.ceil(len(labels) / recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.ivon["lr"], steps, cycle_momentum=False)
    key = hashlib.sha256(repr((recipe, seed)).encode()).hexdigest()
    done = _resume(checkpoint, model, optimizer, schedule, key)
    with tqdm(total=recipe.epochs, initial=done, desc="train", unit=" epochs", disable=not progress) as bar:
        for epoch in range(done, recipe.epochs):
            loss = _epoch(model, images, labels, optimizer, schedule, recipe.batch, 1000 * seed + epoch)
            _save(checkpoint, model, optimizer, schedule, epoch + 1, key)
            bar.update()
            bar.set_postfix(loss=f"{loss:.3f}")
    return Posterior.from_ivon(model, optimizer)


def _epoch(
    model: nn.Module, images: Tensor, labels: Tensor, optimizer: IVON, schedule: Any, batch: int, seed: int
) -> float:
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    total = torch.zeros((), device=labels.device)
    for chosen in order.split(batch):
        optimizer.zero_grad()
        with optimizer.sampled_params(train=True):  # gradients at weights drawn from the posterior
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.detach() * len(chosen)
    return float(total) / len(labels)


def _save(path: Path, model: nn.Module, optimizer: IVON, schedule: Any, done: int, key: str) -> None:
    """Tensors by name, and everything else as JSON in the header."""
    state = optimizer.state_dict()
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    plain: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"state.{index}.{name}"] = value
            else:
                plain.setdefault(str(index), {})[name] = value
    header = {
        "key": key,
        "done": done,
        "state": plain,
        "groups": state["param_groups"],
        "schedule": schedule.state_dict(),
    }
    scratch = path.with_suffix(".part")
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"state": json.dumps(header)})
    scratch.write_bytes(data)  # not save_file, whose errors do not say that it is a matter of permissions or space
    scratch.replace(path)


def _resume(path: Path, model: nn.Module, optimizer: IVON, schedule: Any, key: str) -> int:
    """Bring everything to where the checkpoint was written; the number of epochs done.

    A broken file, or one of another recipe (``key``), is passed over.
    """
    if not path.is_file():
        return 0
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            header = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return 0
    if not isinstance(header, dict) or header.get("key") != key:
        return 0
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    state: dict[int, dict[str, Any]] = {int(index): dict(entries) for index, entries in header["state"].items()}
    for name, tensor in tensors.items():
        if name.startswith("state."):
            _, index, entry = name.split(".", 2)
            state.setdefault(int(index), {})[entry] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": header["groups"]})
    schedule.load_state_dict(header["schedule"])
    return int(header["done"])
