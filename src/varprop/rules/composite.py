"""Functions that are several ops in one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from varprop.moments import Moments, mean_of
from varprop.rules import functions
from varprop.rules.arithmetic import add, expanded, multiply
from varprop.rules.derivative import degree, differentiate
from varprop.rules.difference import differences
from varprop.rules.linear import linear
from varprop.rules.logistic import sigmoid
from varprop.rules.quadrature import integrate
from varprop.rules.ruleset import Rule, RuleSet, rule

aten = torch.ops.aten


@rule(functions.residual_linear, approximation=None, mixes=True)
def residual_linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """y = x + W x + b: x is not independent of W x, so Σ is the linear layer's with the weight I + W. Exact."""
    identity = torch.eye(mean_of(weight).shape[0], dtype=mean_of(weight).dtype, device=mean_of(weight).device)
    return Moments(
        functions.residual_linear(mean_of(x), mean_of(weight), mean_of(bias)),  # I + W would lose digits of a small W
        linear(x, add(weight, identity), bias).var,
    )


@rule(functions.elementwise, approximation=None, scaled=True)
def chain(body: fx.GraphModule, x: Moments, *constants: Tensor) -> Moments:
    """f(x), a chain of elementwise ops with one random input: E f and Var f by quadrature."""
    if degree(body) > 1:
        return integrate(
            lambda nodes: body(nodes, *constants), x, lambda x, step: differences(body, x, step, *constants)
        )
    value, slope = differentiate(body, x.mean, *constants)
    return expanded(value, slope * slope * x.var)


def glu_rule(sigmoid: Rule) -> Rule:
    """GLU's rule, as exact as the sigmoid's."""

    @rule(aten.glu.default, approximation=sigmoid.approximation, mixes=True, scaled=True)
    def glu(x: Moments, dim: int = -1) -> Moments:
        """y = a σ(b), a and b the halves of x."""
        half = x.mean.shape[dim] // 2
        values, gates = (Moments(*(part.narrow(dim, start, half) for part in x)) for start in (0, half))
        return multiply(values, sigmoid(gates))

    return glu


COMPOSITE = RuleSet(residual_linear, chain, glu_rule(sigmoid), name="composite")
