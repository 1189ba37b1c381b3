"""Methods by the names they have in tables: mean, temperature, MC-8, Streamlining, CVP, the rows of the ablation, …"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import nn

from varprop.calibration.scales import calibrate
from varprop.calibration.temperature import TemperatureScaled
from varprop.errors import InputError
from varprop.evaluation.ablation import ABLATIONS, Variant
from varprop.graph.export import Output
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.prediction.links import Link
from varprop.prediction.predictors import MeanNetwork, MonteCarlo, Predictor, Propagated
from varprop.rules import RuleSet

_SAMPLED = re.compile(r"MC-([1-9]\d*)", re.IGNORECASE)
_PLAIN = ("mean", "temperature")
TEMPERED = "CVP + temperature"
"""Propagated without scales, and a temperature: for networks that are not sure enough, which no variance can mend."""


def samples_of(method: str) -> int | None:
    """The number of samples of ``MC-<number>``; None for other methods."""
    found = _SAMPLED.fullmatch(method)
    return int(found[1]) if found else None


def named(text: str) -> str:
    """The method's name as tables have it, from any capitalisation of it."""
    count = samples_of(text)
    if count is not None:
        return f"MC-{count}"
    for name in (*_PLAIN, *ABLATIONS, TEMPERED):
        if text.lower() == name.lower():
            return name
    raise InputError(
        f"there is no method {text!r}; there are {', '.join(_PLAIN)}, MC-<samples>, {', '.join(ABLATIONS)}, {TEMPERED}"
    )


def variant(method: str) -> Variant | None:
    """The rules and the scales of a method that propagates; None for others."""
    return ABLATIONS.get("CVP, none" if method == TEMPERED else method)


def listed(text: str) -> list[str]:
    """The methods in a list with commas between, some of which have a comma in their names: ``mean,CVP, none``."""
    parts = [part.strip() for part in text.split(",")]
    found = []
    while parts:
        both = ", ".join(parts[:2]).lower()
        joined = next((name for name in ABLATIONS if name.lower() == both), None) if len(parts) > 1 else None
        found.append(joined or named(parts[0]))
        del parts[: 2 if joined else 1]
    return found


def build(
    method: str,
    model: nn.Module,
    posterior: Posterior,
    held_out: Any,
    *,
    link: Link | None = None,
    output: Output = None,
    seed: int = 0,
    lift: Callable[[RuleSet], MomentNet] | None = None,
    **calibration: Any,
) -> Predictor:
    """The predictor of that name, fitted on ``held_out`` batches where there is something to fit.

    ``lift`` makes the network of a rule set; by default ``propagate``.
    """
    method = named(method)
    count = samples_of(method)
    if count is not None:
        return MonteCarlo(model, posterior, count, link=link, seed=seed, output=output)
    found = variant(method)
    if found is None:
        mean = MeanNetwork(model, posterior, link=link, output=output)
        return mean if method == "mean" else TemperatureScaled(mean).fit(held_out)
    net = lift(found.rules) if lift else propagate(model, posterior, found.rules, output=output)
    propagated = Propagated(calibrate(net, held_out, link=link, scales=found.scales, **calibration), link=link)
    return TemperatureScaled(propagated).fit(held_out) if method == TEMPERED else propagated
