"""``vp.plot``: the figures of the report, of what is in memory. Each returns Matplotlib's axes.

The figures are not pyplot's: show one in a notebook with ``axes.figure``, keep one with ``axes.figure.savefig(path)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from varprop.errors import InputError
from varprop.evaluation.evaluate import risk_curve
from varprop.evaluation.evaluated import Evaluated, Evaluation
from varprop.evaluation.fidelity import Comparison
from varprop.evaluation.results import METRICS, Row
from varprop.network.moment_net import MomentNet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOT = "plot"


def risk_coverage(evaluations: Any) -> Axes:
    """The risk of the most confident part of the examples, by its size.

    ``evaluations`` is one of ``vp.evaluate``, or several by name: ``{"mean": …, "cvp": …}``.
    """
    several = _several(evaluations, Evaluation)
    curves = {(name, 0): risk_curve(found.confidence, found.correctness) for name, found in several.items()}
    return _drawn(lambda figures, _, look: figures.risk_coverage(PLOT, curves, look), list(several))[0]


def reliability(evaluations: Any) -> list[Axes]:
    """Accuracy by confidence, a diagram for each evaluation; on the diagonal if calibrated."""
    several = _several(evaluations, Evaluation)
    scores = {
        name: [{"confidence": e.confidence.numpy(), "correctness": e.correctness.numpy()}]
        for name, e in several.items()
    }
    errors = {name: 100 * found.metrics["ece"] for name, found in several.items()}
    drawn = _drawn(lambda figures, _, look: figures.reliability(PLOT, scores, errors, look), list(several))
    return drawn[: len(several)]


def scales(nets: Any) -> Axes:
    """The fitted variance scales, by module: of a network of ``calibrate``, or of several by name."""
    several = _several(nets, MomentNet, "network")
    fitted = {(name, 0): net.scales for name, net in several.items()}
    return _drawn(lambda _, layers, look: layers.scales(PLOT, fitted, look), list(several))[0]


def pareto(evaluations: Any, costs: Mapping[str, Mapping[str, float]], metric: str = "aurc") -> Axes:
    """A metric against time, for each name that has both: ``costs`` are those of ``evaluation.cost.relative_costs``."""
    rows = [
        Row(PLOT, name, 0, len(e), {k: v for k, v in e.metrics.items() if k in METRICS}, cost=costs.get(name))
        for name, e in _several(evaluations, Evaluated).items()
    ]

    def draw(figures: Any, _: Any, look: Any) -> Any:
        from varprop.report.columns import NAMED
        from varprop.report.summary import Summary

        if metric not in NAMED:
            raise InputError(f"there is no metric {metric!r}; there are {', '.join(NAMED)}")
        return figures.pareto(Summary(rows), PLOT, NAMED[metric], look)

    return _drawn(draw, [row.method for row in rows])[0]


def fidelity(comparisons: Any) -> list[Axes]:
    """Variance and mean of every module beside those of sampled networks: of ``vp.compare``, or several by name."""
    several = _several(comparisons, Comparison, "network")
    modules = {(name, 0): [*map(dataclasses.asdict, found)] for name, found in several.items()}
    return _drawn(lambda _, layers, look: layers.fidelity(PLOT, modules, look), list(several))


def _several(given: Any, kind: Any, alone: str = "predictor") -> Mapping[str, Any]:
    """By name; what comes ``alone`` is called that."""
    several = given if isinstance(given, Mapping) else {alone: given}
    for name, each in several.items():
        if not isinstance(each, kind):
            raise InputError(f"{name!r} is a {type(each).__name__}: what is drawn is a {kind.__name__}")
    return several


def _drawn(draw: Callable[[Any, Any, Any], Any], names: list[str]) -> list[Axes]:
    """The axes of the report's drawings."""
    try:
        from varprop.report import figures, layers
        from varprop.report.style import drawing_style, styles
    except ModuleNotFoundError as error:
        raise InputError(f"figures need {error.name}: pip install 'varprop[report]'") from error
    with drawing_style():
        drawings = draw(figures, layers, styles(names))
    found = [drawings] if drawings is not None and not isinstance(drawings, list) else drawings
    if not found:
        raise InputError("there is nothing to draw: none of these has what the figure shows")
    return [axes for drawing in found for axes in drawing.figure.axes]
