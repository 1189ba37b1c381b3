"""The options of a parameter group: which values make sense, and the numbers an update needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from varprop.errors import SettingError

_POSITIVE = ("lr", "ess", "hess_init", "weight_decay", "clip_radius")
_BETAS = ("beta1", "beta2")


class Settings(NamedTuple):
    """One group's numbers at one step; in formulas ess is λ, weight_decay δ, hess_init h₀ and clip_radius r."""

    lr: float
    ess: float
    hess_init: float
    beta1: float
    beta2: float
    weight_decay: float
    clip_radius: float

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> Settings:
        """Read at every step, because schedulers write into the group; ``lr`` may be a tensor."""
        return cls(*(float(group[name]) for name in cls._fields))


def check(group: Mapping[str, Any]) -> None:
    """Raise for the first option that makes no sense, by name."""
    for name in _POSITIVE:
        value = _number(group, name)
        if not value > 0 or (math.isinf(value) and name != "clip_radius"):
            kind = "positive" if name == "clip_radius" else "positive and finite"
            raise SettingError(f"{name} must be {kind}, not {group[name]!r}")
    for name in _BETAS:
        if not 0 <= _number(group, name) < 1:
            raise SettingError(f"{name} must be at least 0 and below 1, not {group[name]!r}")
    check_integer("draws", group["draws"], least=0)
    seeds = group["seed"] if isinstance(group["seed"], tuple) else ()
    for seed in seeds or (group["seed"],):
        check_integer("seed", seed, least=0)
    if seeds and "params" in group and [len(p) for p in group["params"] if p.ndim] != [len(seeds)]:
        raise SettingError(f"{len(seeds)} seeds are for one parameter that stacks as many networks along its rows")


def check_integer(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingError(f"{name} must be an integer, {least} or more, not {value!r}")


def _number(group: Mapping[str, Any], name: str) -> float:
    if name not in group:
        raise SettingError(f"no {name!r} in a parameter group: these are not the options of an IVON optimizer")
    try:
        return float(group[name])
    except (TypeError, ValueError):
        raise SettingError(f"{name} must be a number, not {group[name]!r}") from None
