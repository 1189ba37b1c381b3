"""One rule per op. A rule set is a value: change it with ``|`` and ``replace``."""

from __future__ import annotations

from varprop.rules import linearized
from varprop.rules.activation import ACTIVATION
from varprop.rules.arithmetic import ARITHMETIC
from varprop.rules.attention import ATTENTION
from varprop.rules.composite import COMPOSITE
from varprop.rules.linear import LINEAR
from varprop.rules.normalization import BATCH_NORM, NORMALIZATION
from varprop.rules.pooling import MAX_POOLING, POOLING
from varprop.rules.reduction import MAXIMA, REDUCTION
from varprop.rules.ruleset import Rule, RuleSet, rule
from varprop.rules.structural import STRUCTURAL

CVP = RuleSet(
    ARITHMETIC,
    LINEAR,
    ACTIVATION,
    NORMALIZATION,
    BATCH_NORM,
    ATTENTION,
    REDUCTION,
    MAXIMA,
    POOLING,
    MAX_POOLING,
    STRUCTURAL,
    COMPOSITE,
    name="CVP",
)
"""The paper's rules: exact activation moments, expectation-based normalisation."""

STREAMLINING = CVP.replace(linearized.ACTIVATION, linearized.NORMALIZATION, linearized.MAXIMA, name="STREAMLINING")
"""The baseline's rules: everything linearised at the mean, so that means stay the mean network's."""

__all__ = ["CVP", "STREAMLINING", "Rule", "RuleSet", "linearized", "rule"]
