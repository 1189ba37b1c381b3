"""Calibration: a scale α on the variance at each scale point, fitted by likelihood on held-out data."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from varprop.calibration.adaptive import Adaptive
from varprop.calibration.procedure import HeldOut, Procedure, Request
from varprop.errors import CalibrationError, InputError, PrecisionError
from varprop.graph.walk import OUTPUT
from varprop.network.moment_net import MomentNet
from varprop.prediction.links import ClassLink, Link, Softmax

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
        held_out = HeldOut(batches, classes=isinstance(link, ClassLink))
        shown = held_out.first.to(net.device)
        net.capture(*shown.args, **shown.kwargs)
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
