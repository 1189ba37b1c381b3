"""Checkpoints of the ``ivon-opt`` package: one vector per group, brought into one state per parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from varprop.errors import SettingError

# ivon-opt saves no step count. Its momentum is taken as settled: at this count the correction for the start is nil.
_SETTLED = 1_000_000


def unflatten(state_dict: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state dict as ours would be, if its groups hold vectors; else the state dict itself."""
    saved = state_dict["param_groups"]
    if not any("hess" in group for group in saved):
        return state_dict
    if [len(group["params"]) for group in saved] != [len(group["params"]) for group in groups]:
        raise SettingError("the checkpoint has other parameter groups than the optimizer")
    state: dict[Any, Any] = {}
    options = []
    for group, ours in zip(saved, groups, strict=True):
        for name in ("momentum", "hess"):
            for key, part in zip(group["params"], _parts(name, group[name], ours["params"]), strict=True):
                state.setdefault(key, {"step": _SETTLED})[name] = part
        dropped = ("momentum", "hess", "numel", "mc_samples")
        kept = {name: value for name, value in group.items() if name not in dropped}
        options.append({"seed": ours["seed"], "draws": 0} | kept)
    return {"state": state, "param_groups": options}


def _parts(name: str, flat: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    sizes = [p.numel() for p in params]
    if flat.numel() != sum(sizes):
        raise SettingError(f"{name!r} has {flat.numel()} entries, the parameters of its group {sum(sizes)}")
    return [part.view(p.shape) for part, p in zip(flat.split(sizes), params, strict=True)]
