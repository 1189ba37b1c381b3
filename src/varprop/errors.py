"""What can go wrong, each with a type of its own. Messages name the place and the remedy."""

from __future__ import annotations

from collections.abc import Sequence


class VarpropError(Exception):
    """Every error raised on purpose by varprop."""


class PosteriorError(VarpropError, ValueError):
    """A posterior whose tensors cannot be means and variances."""


class PosteriorMismatchError(PosteriorError):
    """A posterior that does not fit the model it is used with."""


class PosteriorFileError(PosteriorError):
    """A file that holds no (whole) posterior."""


class OptimizerStateError(PosteriorError):
    """An optimizer, or its saved state, that holds no second moments of gradients to read a curvature from."""


class CurvatureError(PosteriorError):
    """A curvature that gives no variances: NaN, negative, or zero everywhere."""


class RuleError(VarpropError, ValueError):
    """A rule or rule set that contradicts itself."""


class UnsupportedOpError(VarpropError, NotImplementedError):
    """Variance reaches ops that have no rule."""


class CaptureError(VarpropError, RuntimeError):
    """The model runs, but cannot be captured as a graph."""


class TrainingModeError(VarpropError, RuntimeError):
    """The model would behave as in training: dropout or batch statistics are active."""


class InputError(VarpropError, TypeError):
    """Inputs the model or the propagated network cannot take."""


class OutputError(VarpropError, ValueError):
    """The output to propagate to is missing or ambiguous."""


class DeviceMismatchError(VarpropError, RuntimeError):
    """Tensors on different devices."""


class PrecisionError(VarpropError, ValueError):
    """A dtype that cannot hold variances."""


class NetworkFileError(VarpropError, ValueError):
    """A folder that holds no (whole) propagated network, or one that cannot be loaded or saved as asked for."""


class ExportError(VarpropError, RuntimeError):
    """A predictor that cannot be written as a file of its own, or was not written faithfully."""


class MissingPackageError(VarpropError, ImportError):
    """An optional package that what was asked for needs, and that is not installed."""


class GroupError(VarpropError, RuntimeError):
    """Processes that were to share work, one of which is gone."""


class CalibrationError(VarpropError, ValueError):
    """A calibration that cannot be done as asked for."""


class MetricError(VarpropError, ValueError):
    """Predictions or settings a metric is not defined for."""


class GuaranteeError(VarpropError, ValueError):
    """No threshold keeps the risk that was asked for at the level that was asked for."""


class ResultsError(VarpropError, ValueError):
    """A results folder that cannot be read or written, or a row that does not belong in one."""


class SettingError(VarpropError, ValueError):
    """An option of an optimizer or a posterior, or a checkpoint of an optimizer, that makes no sense."""


class SamplingError(VarpropError, RuntimeError):
    """Steps, draws and gradients in an order that would train something other than the posterior."""


def listing(headline: str, problems: Sequence[str], remedy: str = "") -> str:
    """A message: what is wrong, each case of it on a line of its own, then the remedy."""
    lines = [f"{headline}:", *(f"  {problem}" for problem in problems)]
    return "\n".join([*lines, remedy] if remedy else lines)


def shortened(problems: Sequence[str], shown: int = 8) -> list[str]:
    """The first problems, and how many more there are: further ones of a kind say nothing new."""
    rest = len(problems) - shown
    return [*problems[:shown], f"… and {rest} more"] if rest > 0 else list(problems)
