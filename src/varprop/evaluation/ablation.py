"""The ablation table: which rules and which scales the gain comes from."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn

from varprop.calibration.scales import calibrate
from varprop.errors import InputError
from varprop.evaluation.methods import METHODS, Method
from varprop.graph.export import Output
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.rules import RuleSet

ABLATIONS: Mapping[str, Method] = MappingProxyType(
    {slug: method for slug, method in METHODS.items() if method.rules is not None and not method.temperature}
)
"""The rows of the paper's ablation table, by slug."""


def ablate(
    model: nn.Module,
    posterior: Posterior,
    batches: Any,
    *,
    methods: Iterable[Method] = tuple(ABLATIONS.values()),
    output: Output = None,
    **settings: Any,
) -> dict[str, MomentNet]:
    """A calibrated network for each method, by slug. ``settings`` are those of ``calibrate``.

    Each rule set is lifted once.
    """

    @functools.cache
    def lifted(rules: RuleSet) -> MomentNet:
        return propagate(model, posterior, rules, output=output)

    nets: dict[str, MomentNet] = {}
    for method in methods:
        if method.rules is None or method.slug in nets:
            raise InputError(f"{method.slug!r} is no ablation: give methods with rules, each with a slug of its own")
        nets[method.slug] = calibrate(lifted(method.rules), batches, scales=method.scales, **settings)
    return nets
