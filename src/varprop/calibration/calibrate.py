"""From a network and held-out data to a calibrated one (``calibrate``), and to a predictor in one call (``fit``)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from varprop.batch import read, repeatable
from varprop.calibration.adaptive import Adaptive
from varprop.calibration.procedure import HeldOut, Procedure, Request
from varprop.errors import CalibrationError, InputError, PrecisionError
from varprop.graph.interpreter import OUTPUT
from varprop.graph.output import Output
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.prediction.links import ClassLink, Link, Softmax
from varprop.prediction.predictors import Propagated, link_for
from varprop.rules import CVP, RuleSet

PER_LAYER = ("**",)
"""Every scale point: before activations and norms, and at the output."""
OUTPUT_ONLY = (OUTPUT,)
"""One scale, at the output."""
ADAPTIVE = Adaptive()


def calibrate(
    net: MomentNet,
    batches: Any,
    *,
    link: Link | None = None,
    scales: Sequence[str] = PER_LAYER,
    procedure: Procedure = ADAPTIVE,
    cache: int = 1 << 30,
    progress: bool = True,
    group: Any = None,
) -> MomentNet:
    """A new network, calibrated to held-out ``batches`` by their NLL; ``net.calibration`` says how it went.

    By default (``Adaptive``) the width of the posterior, a temperature and the variance scales α (``net.scales``) are
    fitted, each only as far as cross-validation supports it. ``procedure=FixedEpochs()`` is the paper's: α alone.

    ``batches`` is a data loader or a list, of pairs (inputs, target) or of dicts with ``labels``; a batch may have any
    size. ``scales`` selects which α are fitted, by patterns on their names: ``PER_LAYER``, ``OUTPUT_ONLY``, or ``()``
    for none. What no fitted α can change is computed once and kept, up to ``cache`` bytes. ``link`` must be the one
    predictions are made with; by default softmax. A label of −100 is none: such tokens and pixels are left out.
    With a ``group`` of ``torch.distributed``, each of its processes, given the same, does its share of the passes.
    """
    _check(net)
    with torch.inference_mode(False), torch.enable_grad():  # whatever the caller has switched off
        link = link or Softmax()
        held_out = HeldOut(batches, classes=isinstance(link, ClassLink), one=net.takes_one)
        shown = held_out.first.to(net.device)
        with torch.no_grad():
            logits = net(*shown.args, **shown.kwargs)
        if isinstance(link, ClassLink):
            link.refuse_squashed(logits.mean)
        new = copy.deepcopy(net)
        request = Request(link, tuple(scales), cache, None if progress else True, group)
        return procedure.fit(new, held_out, request)


def _check(net: MomentNet) -> None:
    if not isinstance(net, MomentNet):
        raise InputError(f"calibrate(net, batches) takes a propagated network, not a {type(net).__name__}")
    if net.dtype not in (torch.float32, torch.float64):
        raise PrecisionError(f"calibrate in float32 and cast afterwards: {net.dtype} is too coarse for small steps")
    if not any(bool((var > 0).any()) for _, var in net.var):
        raise CalibrationError("all variances of this network are 0: there is nothing to scale")


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
        first = next(read(held_out, one=net.takes_one)).to(net.device)
        link = link_for(net(*first.args, **first.kwargs).mean, first.target)
    net = calibrate(net, held_out, link=link, scales=scales, procedure=procedure, progress=progress, group=group)
    return Propagated(net, link=link, classes=classes, processor=processor)
