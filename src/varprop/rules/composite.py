"""Functions that are several ops in one."""

from __future__ import annotations

from typing import Any

import torch

from torch import Tensor, fx

from varprop import ops
from varprop.moments import Moments, is_random, mean_of
from varprop.rules.activation import sigmoid
from varprop.rules.arithmetic import moments, multiply
from varprop.rules.derivative import degree
from varprop.rules.linear import linear
from varprop.rules.quadrature import integrate
from varprop.rules.ruleset import RuleSet, rule

aten = torch.ops.aten


@rule(ops.residual_linear)
def residual_linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """y = x + W x + b = (I + W) x + b. The linear rule plus (1 + 2 diag μ_W) Σx: x is not independent of W x. Exact."""
    branch = linear(x, weight, bias)
    mean = mean_of(x) + branch.mean
    if not is_random(x):
        return Moments(mean, branch.var)
    return Moments(mean, branch.var + (1 + 2 * mean_of(weight).diagonal()) * x.var)


@rule(ops.elementwise, scaled=True)
def chain(body: fx.GraphModule, x: Moments, *constants: Tensor) -> Moments:
    """f(x), a chain of elementwise ops with one random input: E f and Var f by quadrature. Exact."""
    if degree(body) > 1:
        return integrate(lambda nodes: body(nodes, *constants), x)
    slope = body(torch.ones_like(x.mean), *constants) - body(torch.zeros_like(x.mean), *constants)
    return moments(body(x.mean, *constants), slope * slope * x.var)


@rule(aten.glu.default, scaled=True)
def glu(x: Moments, dim: int = -1) -> Moments:
    """y = a σ(b), a and b the halves of x. Exact to the accuracy of the sigmoid's moments. Exact."""
    half = x.mean.shape[dim] // 2
    values, gates = (Moments(*(part.narrow(dim, start, half) for part in x)) for start in (0, half))
    return multiply(values, sigmoid(gates))


COMPOSITE = RuleSet(residual_linear, chain, glu, name="composite")
