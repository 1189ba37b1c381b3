"""One rule per op. A rule set is a value: change it with ``|`` and ``replace``.

Where the rule of an op is, by what the op does:

arithmetic      sums, products, quotients, remainders
linear          linear layers, matrix products, convolutions, einsum
attention       scaled dot-product attention, softmax, log-sum-exp
normalization   norms by input statistics and by running ones
vector_norms    vector norms, distances, cosines, variances and deviations of samples
reduction       sums, means and products over dims, scattered sums, bags of embeddings
maxima          maxima, minima, sorting, medians
pooling         pooling, interpolation, sampling at positions
fourier         Fourier transforms, complex numbers
structural      ops that move or copy entries; comparisons and rounding, where variance ends
activation      all activations, by their files: piecewise (ReLU, clamp, Hardswish …), gelu, logistic (sigmoid, tanh,
                SiLU, softplus), exponential_linear (ELU and its kin), elementary (exp, sin, powers, Mish …);
                and what has no moments and is linearised, by its derivative: log, acos …
derivative      derivatives of elementwise functions
delta           functions of several tensors, linearised: atan2, hypot, xlogy …
streamlining    the baseline's rules for activations, norms and maxima
factored_*      FACTORED's rules for layers and for ops that move entries
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from varprop.rules import streamlining
from varprop.rules.activation import ACTIVATION, LINEARISED
from varprop.rules.arithmetic import ARITHMETIC
from varprop.rules.attention import ATTENTION
from varprop.rules.delta import SEVERAL
from varprop.rules.factored_layers import layers
from varprop.rules.factored_structural import REARRANGING
from varprop.rules.fourier import FOURIER
from varprop.rules.linear import LINEAR
from varprop.rules.maxima import MAXIMA, ORDER
from varprop.rules.normalization import NORMALIZATION, batch_norm
from varprop.rules.pooling import POOLING
from varprop.rules.reduction import REDUCTION
from varprop.rules.ruleset import Rule, RuleSet, rule
from varprop.rules.structural import DECISIONS, STRUCTURAL
from varprop.rules.vector_norms import VECTOR_NORMS

CVP = RuleSet(
    ARITHMETIC,
    LINEAR,
    ACTIVATION,
    NORMALIZATION,
    VECTOR_NORMS,
    batch_norm,
    ATTENTION,
    REDUCTION,
    MAXIMA,
    POOLING,
    STRUCTURAL,
    DECISIONS,
    FOURIER,
    ORDER,
    LINEARISED,
    SEVERAL,
    name="CVP",
)
"""The paper's rules: exact activation moments, expectation-based normalisation."""

STREAMLINING = CVP.replace(
    streamlining.ACTIVATION,
    streamlining.NORMALIZATION,
    streamlining.VECTOR_NORMS,
    streamlining.MAXIMA,
    name="STREAMLINING",
)
"""The baseline's rules: everything linearised at the mean, so that means stay the mean network's."""


def factored(rank: int = 1) -> RuleSet:
    """CVP's rules with the variances of weights kept as ``rank`` products for each layer; see ``FACTORED``."""
    return CVP.replace(layers(rank), REARRANGING, name="FACTORED" if rank == 1 else f"FACTORED, rank {rank}")


FACTORED = factored()
"""CVP at a fraction of its cost: variances of weights, and of what layers make of them, as sums of products."""

CVP_MINUS_NORM = CVP.replace(streamlining.NORMALIZATION, name="CVP - norm")
CVP_MINUS_ACTIVATION = CVP.replace(streamlining.ACTIVATION, name="CVP - activation")

NAMED: Mapping[str, RuleSet] = MappingProxyType(
    {rules.name: rules for rules in (CVP, FACTORED, STREAMLINING, CVP_MINUS_NORM, CVP_MINUS_ACTIVATION)}
)
"""The rule sets of the library, which a saved network refers to by name."""

__all__ = [
    "CVP",
    "CVP_MINUS_ACTIVATION",
    "CVP_MINUS_NORM",
    "FACTORED",
    "NAMED",
    "STREAMLINING",
    "Rule",
    "RuleSet",
    "factored",
    "rule",
    "streamlining",
]
