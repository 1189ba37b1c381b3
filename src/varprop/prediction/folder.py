"""A predictor from the folder it was saved in."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from varprop.errors import NetworkFileError
from varprop.graph.output import Output
from varprop.moments import Moments
from varprop.network import rebuilding
from varprop.network.moment_net import MomentNet
from varprop.network.storage import CONFIG, read_config, reported
from varprop.posterior import Posterior
from varprop.prediction.conformal import Conformal
from varprop.prediction.guarantee import Guarantee
from varprop.prediction.links import Link
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.per_label import PerLabel
from varprop.prediction.predictor_config import read_link, read_processor
from varprop.prediction.predictors import MeanNetwork, Predictor, Propagated
from varprop.prediction.selective import CONFIDENCE, Selective
from varprop.prediction.temperature import Fit, TemperatureScaled
from varprop.rules import RuleSet


def load(
    path: str | os.PathLike[str],
    model: nn.Module | None = None,
    rules: RuleSet | None = None,
    output: Output = None,
    *,
    link: Link | None = None,
    score: Callable[[Any], Any] | None = None,
    device: torch.device | str = "cpu",
    accelerator: torch.device | str | None = None,
) -> Any:
    """The predictor that ``save_pretrained`` wrote to a folder. Nothing in the folder is run.

    A model of transformers is rebuilt; any other must be given as ``model``, whose weights do not matter. So must rules
    that are not the library's own, an ``output`` that is a function, and a ``score`` of ``Selective`` other than the
    confidence. ``link`` replaces the one it was saved with. On the ``device`` "disk", weights stay in their file, and
    are read as they are used: by the CPU, or by an ``accelerator`` that has no room for all of them and gets a layer at
    a time. Inputs and results are on the device.
    """
    folder = Path(path)
    with reported(f"cannot load {folder}"):
        config = read_config(folder)
        chosen = link or read_link(config.get("link"))  # first, because it fails in no time
        processor = read_processor(folder, config.get("processor"))
    net = MomentNet.from_pretrained(folder, model, rules, output, device=device, accelerator=accelerator)
    with reported(f"cannot load {folder}"):
        record = config.get("predictor", {"kind": "Propagated"})  # which version 0.1 does not name
        try:
            return _Loaded(net, chosen, score).build(record, processor=processor, **_classes(config))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, NetworkFileError):
                raise
            raise NetworkFileError(f"its {CONFIG} describes an impossible predictor ({error})") from error


def _classes(config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """None where the model itself names them."""
    return {"classes": tuple(map(str, config["classes"]))} if config.get("classes") else {}


class _Loaded:
    """What predictors are made from, and how each kind is made."""

    def __init__(self, net: MomentNet, link: Link, score: Callable[[Any], Any] | None) -> None:
        self.net, self.link, self.score = net, link, score
        self.kinds: dict[str, Callable[..., Any]] = {
            "Propagated": lambda: Propagated(net, link=link),
            "MeanNetwork": lambda: MeanNetwork(self.model(), link=link, output=net.output),
            "MonteCarlo": self.monte_carlo,
            "TemperatureScaled": lambda predictor, temperature, fitted: TemperatureScaled(
                predictor, temperature, fitted=Fit(**fitted) if fitted else None
            ),
            "Selective": self.selective,
            "Conformal": Conformal,
            "PerLabel": PerLabel,
        }

    def build(self, record: Mapping[str, Any], **attributes: Any) -> Any:
        """The predictor of a record; one that is made from no other gets the attributes."""
        settings = {key: value for key, value in record.items() if key != "kind"}
        if record["kind"] not in self.kinds:
            raise NetworkFileError(f"this varprop has no predictor {record['kind']!r}: a newer one may have written it")
        if "predictor" in settings:
            settings["predictor"] = self.build(settings["predictor"], **attributes)
        found = self.kinds[record["kind"]](**settings)
        if "predictor" not in settings:
            vars(found).update(attributes)
        return found

    def model(self) -> nn.Module:
        """A plain model with the weights that were saved."""
        model = copy.deepcopy(self.net.lifting.model)
        rebuilding.fill(model, dict([*self.net.mean]), dict([*self.net.buffer]))
        return model

    def monte_carlo(self, **settings: Any) -> MonteCarlo:
        means = dict([*self.net.mean])
        posterior = Posterior({name: Moments(means[name], var) for name, var in self.net.var})
        return MonteCarlo(self.model(), posterior, link=self.link, output=self.net.output, **settings)

    def selective(self, predictor: Predictor, guarantee: dict[str, Any] | None, score: str | None) -> Selective:
        if score is not None and self.score is None:
            raise NetworkFileError(f"it abstains by a score of its own, {score}: give it as score=")
        promise = None
        if guarantee is not None:
            threshold = -math.inf if guarantee["threshold"] is None else guarantee["threshold"]
            promise = Guarantee(**guarantee | {"threshold": threshold})
        return Selective(predictor, score=self.score or CONFIDENCE, guarantee=promise)
