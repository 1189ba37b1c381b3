"""varprop: calibrated uncertainty in one forward pass, for any trained PyTorch network with a Gaussian posterior."""

from varprop import errors, metrics, optim, testing
from varprop.calibration.adaptive import Adaptive
from varprop.calibration.calibrate import OUTPUT_ONLY, PER_LAYER, calibrate, fit
from varprop.calibration.fixed_epochs import FixedEpochs
from varprop.deployment.exporting import export
from varprop.deployment.generating import Generation, Stepper, generate
from varprop.deployment.scoring import score
from varprop.evaluation.evaluate import evaluate
from varprop.evaluation.evaluated import Evaluation, Evaluations, RegressionEvaluation
from varprop.evaluation.fidelity import Comparison, compare
from varprop.evaluation.methods import ABLATIONS, Method, ablate
from varprop.integrations import plot
from varprop.moments import Moments
from varprop.network.audit import Audit, audit
from varprop.network.moment_net import MomentNet, propagate
from varprop.network.record import Calibration, Trace
from varprop.posterior import SWAG, Posterior
from varprop.prediction import links, scores
from varprop.prediction.conformal import Conformal
from varprop.prediction.folder import load
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.per_label import PerLabel
from varprop.prediction.prediction import Prediction, Regression
from varprop.prediction.predictors import MeanNetwork, Predictor, Propagated
from varprop.prediction.selective import ABSTAIN, Decision, Selective
from varprop.prediction.temperature import TemperatureScaled
from varprop.report import write_report
from varprop.rules import CVP, FACTORED, STREAMLINING, Rule, RuleSet, factored, rule, streamlining

__version__ = "0.2.0.dev0"

__all__ = [
    "ABLATIONS",
    "ABSTAIN",
    "CVP",
    "FACTORED",
    "OUTPUT_ONLY",
    "PER_LAYER",
    "STREAMLINING",
    "SWAG",
    "Adaptive",
    "Audit",
    "Calibration",
    "Comparison",
    "Conformal",
    "Decision",
    "Evaluation",
    "Evaluations",
    "FixedEpochs",
    "Generation",
    "MeanNetwork",
    "Method",
    "MomentNet",
    "Moments",
    "MonteCarlo",
    "PerLabel",
    "Posterior",
    "Prediction",
    "Predictor",
    "Propagated",
    "Regression",
    "RegressionEvaluation",
    "Rule",
    "RuleSet",
    "Selective",
    "Stepper",
    "TemperatureScaled",
    "Trace",
    "ablate",
    "audit",
    "calibrate",
    "compare",
    "errors",
    "evaluate",
    "export",
    "factored",
    "fit",
    "generate",
    "links",
    "load",
    "metrics",
    "optim",
    "plot",
    "propagate",
    "rule",
    "score",
    "scores",
    "streamlining",
    "testing",
    "write_report",
]
