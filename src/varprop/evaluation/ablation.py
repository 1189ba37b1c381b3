"""The ablation table: which rules and which scales the gain comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import nn

from varprop.calibration.scales import OUTPUT_ONLY, PER_LAYER, calibrate
from varprop.graph.export import Output
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.rules import CVP, CVP_MINUS_ACTIVATION, CVP_MINUS_NORM, STREAMLINING, RuleSet


class Variant(NamedTuple):
    """One row: the rules, and the scales that are fitted."""

    rules: RuleSet
    scales: Sequence[str]


ABLATIONS: Mapping[str, Variant] = MappingProxyType(
    {
        "CVP": Variant(CVP, PER_LAYER),
        "CVP - norm": Variant(CVP_MINUS_NORM, PER_LAYER),
        "CVP - activation": Variant(CVP_MINUS_ACTIVATION, PER_LAYER),
        "CVP, output only": Variant(CVP, OUTPUT_ONLY),
        "CVP, none": Variant(CVP, ()),
        "Streamlining": Variant(STREAMLINING, OUTPUT_ONLY),
        "Streamlining + per layer": Variant(STREAMLINING, PER_LAYER),
        "Streamlining, none": Variant(STREAMLINING, ()),
    }
)
"""The rows of the paper's ablation table."""


def ablate(
    model: nn.Module,
    posterior: Posterior,
    batches: Any,
    *,
    variants: Mapping[str, Variant] = ABLATIONS,
    output: Output = None,
    **settings: Any,
) -> dict[str, MomentNet]:
    """A calibrated network for each variant. ``settings`` are those of ``calibrate``; each rule set is lifted once."""
    nets: dict[str, MomentNet] = {}
    results = {}
    for name, (rules, scales) in variants.items():
        if rules.name not in nets:
            nets[rules.name] = propagate(model, posterior, rules, output=output)
        results[name] = calibrate(nets[rules.name], batches, scales=scales, **settings)
    return results
