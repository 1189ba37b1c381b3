"""All activations, chains of elementwise ops, gated linear units, and the paper's own sigmoid and tanh."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from varprop.moments import Moments
from varprop.rules import functions
from varprop.rules.arithmetic import multiply
from varprop.rules.delta import delta_of_chain, tangent
from varprop.rules.derivative import AFFINE, UNARY, differences, is_affine
from varprop.rules.elementary import ELEMENTARY
from varprop.rules.exponential_linear import EXPONENTIAL_LINEAR
from varprop.rules.gelu import gelu
from varprop.rules.logistic import LOGISTIC, sigmoid
from varprop.rules.normal import in_float32
from varprop.rules.piecewise import PIECEWISE
from varprop.rules.quadrature import integrate
from varprop.rules.ruleset import Rule, RuleSet, rule

aten = torch.ops.aten


@rule(functions.elementwise, approximation=None, scaled=True)
def chain(body: fx.GraphModule, x: Moments, *constants: Tensor) -> Moments:
    """f(x), a chain of elementwise ops with one random input: E f and Var f by quadrature."""
    if is_affine(body):
        return delta_of_chain(body, x, *constants)
    return integrate(lambda points: body(points, *constants), x, lambda x, step: differences(body, x, step, *constants))


def glu_rule(sigmoid: Rule) -> Rule:
    """GLU's rule, as exact as the sigmoid's."""

    @rule(aten.glu.default, approximation=sigmoid.approximation, mixes=True, scaled=True)
    def glu(x: Moments, dim: int = -1) -> Moments:
        """y = a σ(b), a and b the halves of x."""
        half = x.mean.shape[dim] // 2
        values, gates = (Moments(*(part.narrow(dim, start, half) for part in x)) for start in (0, half))
        return multiply(values, sigmoid(gates))

    return glu


ACTIVATION = RuleSet(
    *(PIECEWISE, gelu, LOGISTIC, EXPONENTIAL_LINEAR, ELEMENTARY, glu_rule(sigmoid), chain),
    name="activations",
)


LINEARISED = RuleSet(*(tangent(op) for op in UNARY if op not in ACTIVATION and op not in AFFINE), name="linearised")
"""What is not defined everywhere, or has no moments: all other functions of one tensor whose derivative is known."""


PROBIT = "variance off by 0.8 to 4.4 times for |μ| ≤ 3 and small v, by thousands in the tails"


@rule(aten.sigmoid.default, approximation=PROBIT, scaled=True)
@in_float32
def paper_sigmoid(x: Moments) -> Moments:
    """The paper's σ(x) ≈ Φ(λx), λ² = π/8: m = σ(μ/β), var = m (1 − m) (1 − 1/β), β² = 1 + λ²v."""
    beta = torch.sqrt(1 + math.pi / 8 * x.var)
    gate = torch.sigmoid(x.mean / beta)
    # 1 − 1/β without cancellation
    return Moments(gate, gate * torch.sigmoid(-x.mean / beta) * (math.pi / 8 * x.var / (beta * (1 + beta))))


@rule(aten.tanh.default, approximation=PROBIT, scaled=True)
@in_float32
def paper_tanh(x: Moments) -> Moments:
    """The paper's tanh(x) = 2σ(2x) − 1, from its σ."""
    y = paper_sigmoid(multiply(x, 2.0))
    return Moments(2 * y.mean - 1, 4 * y.var)


PAPER_SIGMOID = RuleSet(paper_sigmoid, paper_tanh, name="the paper's sigmoid and tanh")
"""The paper's own formulas, for comparison: ``CVP.replace(PAPER_SIGMOID)``."""
