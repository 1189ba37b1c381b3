"""Streamlining's rules: every non-linear op is linearised at the mean, so means are those of the mean network."""

from __future__ import annotations

from typing import Any

import torch

from varprop.moments import Moments, is_random, mean_of
from varprop.rules import activation, functions
from varprop.rules.delta import DELTA, delta_of_chain, tangent
from varprop.rules.maxima import max_rules
from varprop.rules.normalization import norm_rules
from varprop.rules.reduction import DECIDED_LARGEST
from varprop.rules.ruleset import Op, RuleSet, rule, rule_for_each
from varprop.rules.vector_norms import vector_norm_rules

aten = torch.ops.aten


chain = rule(functions.elementwise, approximation=DELTA, scaled=True)(delta_of_chain)


@rule(aten.prelu.default, approximation=DELTA, scaled=True)
def prelu(x: Any, weight: Any) -> Moments:
    """x⁺ − w x⁻ at the means."""
    mean, slope = mean_of(x), mean_of(weight)
    shape = (-1, *[1] * (mean.ndim - 2)) if mean.ndim > 1 else slope.shape
    bend = torch.where(mean > 0, 1.0, slope.reshape(shape)).to(mean.dtype)
    var = bend * bend * x.var if is_random(x) else torch.zeros_like(mean)
    if is_random(weight):
        var = var + weight.var.reshape(shape) * mean.clamp(max=0).square()
    return Moments(aten.prelu.default(mean, slope), var)


@rule_for_each(aten.heaviside.default, aten.sign.default, approximation=DELTA, scaled=True)
def step(op: Op, x: Moments, *args: Any) -> Moments:
    """f(μ), whose slope is 0."""
    return Moments(op(x.mean.detach(), *args), torch.zeros_like(x.var))  # torch has no derivative of heaviside


SPECIAL = RuleSet(chain, activation.glu_rule(tangent(aten.sigmoid.default, scaled=True)), prelu, step)

ACTIVATION = RuleSet(
    SPECIAL,
    *(tangent(op, scaled=exact.scaled) for op, exact in activation.ACTIVATION.items() if op not in SPECIAL),
    name="linearised activations",
)

NORMALIZATION = norm_rules(
    lambda x: x.mean * x.mean,
    frozen="the statistic is frozen at its value for the mean, so the norm's mean is the mean network's",
    name="linearised normalization",
)


def _larger_mean(x: Moments, y: Moments) -> Moments:
    return Moments(torch.maximum(x.mean, y.mean), torch.where(x.mean >= y.mean, x.var, y.var))


def _largest_mean(x: Moments, dims: list[int], keepdim: bool) -> Moments:
    for dim in dims:
        values, indices = x.mean.max(dim, True)
        x = Moments(values, x.var.gather(dim, indices))
    return x if keepdim else Moments(*(part.squeeze(dims) for part in x))


MAXIMA = max_rules(
    _larger_mean,
    _largest_mean,
    of_two="which is larger is decided at the mean",
    of_many=DECIDED_LARGEST,
    name="linearised maxima",
)

VECTOR_NORMS = vector_norm_rules(0.0, _largest_mean, root=DELTA, many=DECIDED_LARGEST, name="linearised vector norms")
