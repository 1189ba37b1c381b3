"""varprop: calibrated uncertainty in one forward pass, for any trained PyTorch network with a Gaussian posterior."""

from varprop import errors, optim, testing
from varprop.moments import Moments
from varprop.posterior import Posterior
from varprop.propagate.coverage import Coverage, coverage
from varprop.propagate.network import MomentNet, Trace, propagate
from varprop.rules import CVP, STREAMLINING, Rule, RuleSet, linearized, rule

__version__ = "0.1.0"

__all__ = [
    "CVP",
    "STREAMLINING",
    "Coverage",
    "MomentNet",
    "Moments",
    "Posterior",
    "Rule",
    "RuleSet",
    "Trace",
    "coverage",
    "errors",
    "linearized",
    "optim",
    "propagate",
    "rule",
    "testing",
]
