"""From a trained network and held-out data to a predictor, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from varprop.batch import read, repeatable
from varprop.calibration.procedure import Procedure
from varprop.calibration.scales import ADAPTIVE, PER_LAYER, calibrate
from varprop.graph.output import Output
from varprop.network.moment_net import propagate
from varprop.posterior import Posterior
from varprop.prediction.links import Link
from varprop.prediction.predictors import Propagated, link_for
from varprop.rules import CVP, RuleSet


def fit(
    model: nn.Module,
    held_out: Any,
    posterior: Posterior | None = None,
    link: Link | None = None,
    *,
    classes: Sequence[str] | None = None,
    processor: Any = None,
    rules: RuleSet = CVP,
    output: Output = None,
    scales: tuple[str, ...] = PER_LAYER,
    procedure: Procedure = ADAPTIVE,
    progress: bool = True,
    group: Any = None,
) -> Propagated:
    """A calibrated predictor of a trained network: ``propagate``, ``calibrate`` and ``Propagated``.

    ``held_out`` are labelled examples that the model was not trained on, in any form that ``calibrate`` takes. Without
    a ``posterior`` it is isotropic; without a ``link``, the targets tell: class indices are one label of many
    (``Softmax``), zeros and ones in the shape of the outputs several labels (``Sigmoid``), other numbers a regression
    (``Gaussian``, whose noise is fitted). ``classes`` are names of the classes, by default those of ``model.config``;
    ``processor`` (a tokenizer, an image processor) is kept for raw data and saved with the predictor; ``scales``,
    ``procedure`` and ``group`` are those of ``calibrate``.
    """
    net = propagate(model, Posterior.isotropic(model) if posterior is None else posterior, rules, output=output)
    held_out = repeatable(held_out)
    if link is None:
        first = next(read(held_out)).to(net.device)
        link = link_for(net(*first.args, **first.kwargs).mean, first.target)
    net = calibrate(net, held_out, link=link, scales=scales, procedure=procedure, progress=progress, group=group)
    return Propagated(net, link=link, classes=classes, processor=processor)
