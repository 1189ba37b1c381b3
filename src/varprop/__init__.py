"""varprop: calibrated uncertainty in one forward pass, for any trained PyTorch network with a Gaussian posterior."""

from varprop import errors, metrics, optim, testing
from varprop.calibrate.ablation import ABLATIONS, ablate
from varprop.calibrate.scales import OUTPUT_ONLY, PER_LAYER, calibrate
from varprop.evaluate import Evaluation, evaluate
from varprop.moments import Moments
from varprop.posterior import SWAG, Posterior
from varprop.predict import links, scores
from varprop.predict.fidelity import Comparison, compare
from varprop.predict.prediction import Prediction, Regression
from varprop.predict.predictors import MeanNetwork, MonteCarlo, Predictor, Propagated
from varprop.predict.selective import ABSTAIN, Decision, Selective
from varprop.predict.temperature import TemperatureScaled
from varprop.propagate.coverage import Coverage, coverage
from varprop.propagate.network import MomentNet, Trace, propagate
from varprop.rules import CVP, STREAMLINING, Rule, RuleSet, linearized, rule

__version__ = "0.1.0"

__all__ = [
    "ABLATIONS",
    "ABSTAIN",
    "CVP",
    "OUTPUT_ONLY",
    "PER_LAYER",
    "STREAMLINING",
    "SWAG",
    "Comparison",
    "Coverage",
    "Decision",
    "Evaluation",
    "MeanNetwork",
    "MomentNet",
    "Moments",
    "MonteCarlo",
    "Posterior",
    "Prediction",
    "Predictor",
    "Propagated",
    "Regression",
    "Rule",
    "RuleSet",
    "Selective",
    "TemperatureScaled",
    "Trace",
    "ablate",
    "calibrate",
    "compare",
    "coverage",
    "errors",
    "evaluate",
    "linearized",
    "links",
    "metrics",
    "optim",
    "propagate",
    "rule",
    "scores",
    "testing",
]
