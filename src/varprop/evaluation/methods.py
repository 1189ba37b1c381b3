"""The methods that are compared: mean network, temperature, Monte Carlo, and propagation with rules and scales."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

from varprop.calibration.adaptive import Adaptive
from varprop.calibration.calibrate import OUTPUT_ONLY, PER_LAYER, calibrate
from varprop.calibration.fixed_epochs import FixedEpochs
from varprop.calibration.procedure import Procedure
from varprop.errors import InputError
from varprop.graph.output import Output
from varprop.network.moment_net import MomentNet, propagate
from varprop.posterior import Posterior
from varprop.prediction.links import Gaussian, Link
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.predictors import GaussianPredictor, MeanNetwork, Predictor, Propagated
from varprop.prediction.temperature import TemperatureScaled, with_noise
from varprop.rules import CVP, CVP_MINUS_ACTIVATION, CVP_MINUS_NORM, FACTORED, STREAMLINING, RuleSet

PAPER = FixedEpochs()


@dataclass(frozen=True)
class Method:
    """``slug`` is its name on the command line and in stored rows, ``title`` in tables and figures.

    With ``samples`` it is Monte Carlo; with ``rules``, propagation, where ``scales`` are fitted on held-out data;
    with neither, the mean network. ``temperature`` fits one on top, for networks that are underconfident too, which
    no variance can mend. ``procedure`` is that of ``calibrate``, the paper's unless it says otherwise.
    """

    slug: str
    title: str
    rules: RuleSet | None = None
    scales: tuple[str, ...] = PER_LAYER
    samples: int | None = None
    temperature: bool = False
    procedure: Procedure = PAPER

    def build(
        self,
        model: nn.Module,
        posterior: Posterior,
        held_out: Any,
        *,
        link: Link | None = None,
        output: Output = None,
        seed: int = 0,
        lift: Callable[[RuleSet], MomentNet] | None = None,
        paper: FixedEpochs | None = None,
        progress: bool = True,
    ) -> Predictor:
        """The predictor, fitted on ``held_out`` batches where there is something to fit.

        ``lift`` makes the network of a rule set; by default ``propagate``. ``paper`` are other settings of the
        paper's procedure.
        """
        if self.samples is not None:
            return _observed(MonteCarlo(model, posterior, self.samples, link=link, seed=seed, output=output), held_out)
        found: GaussianPredictor = MeanNetwork(model, posterior, link=link, output=output)
        if self.rules is not None:
            net = lift(self.rules) if lift else propagate(model, posterior, self.rules, output=output)
            procedure = paper if paper and isinstance(self.procedure, FixedEpochs) else self.procedure
            net = calibrate(net, held_out, link=link, scales=self.scales, procedure=procedure, progress=progress)
            found = Propagated(net, link=link)
        return TemperatureScaled(found).fit(held_out) if self.temperature else _observed(found, held_out)


def _observed(predictor: Predictor, held_out: Any) -> Predictor:
    """A regression needs to know the noise of what it predicts."""
    return with_noise(predictor, held_out) if predictor.link == Gaussian() else predictor


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.slug: method
        for method in (
            Method("mean", "mean"),
            Method("temperature", "temperature", temperature=True),
            Method("cvp", "CVP", CVP),
            Method("cvp-minus-norm", "CVP - norm", CVP_MINUS_NORM),
            Method("cvp-minus-activation", "CVP - activation", CVP_MINUS_ACTIVATION),
            Method("cvp-output-only", "CVP, output only", CVP, OUTPUT_ONLY),
            Method("cvp-none", "CVP, none", CVP, ()),
            Method("streamlining", "Streamlining", STREAMLINING, OUTPUT_ONLY),
            Method("streamlining-per-layer", "Streamlining + per layer", STREAMLINING),
            Method("streamlining-none", "Streamlining, none", STREAMLINING, ()),
            Method("cvp-temperature", "CVP + temperature", CVP, (), temperature=True),
            Method("cvp-adaptive", "CVP, adaptive", CVP, procedure=Adaptive()),
            Method("cvp-factored", "CVP, factored", FACTORED),
        )
    }
)
"""By slug. Monte Carlo, of which there is one for every number of samples, is ``monte_carlo(samples)``."""

ABLATIONS: Mapping[str, Method] = MappingProxyType(
    {
        slug: method
        for slug, method in METHODS.items()
        if method.rules not in (None, FACTORED) and not method.temperature and method.procedure is PAPER
    }
)
"""The rows of the paper's ablation table, by slug."""


def monte_carlo(samples: int) -> Method:
    """``mc-8``: the average of that many networks drawn from the posterior."""
    return Method(f"mc-{samples}", f"MC-{samples}", samples=samples)


def named(slug: str) -> Method:
    """The method with this slug, however it is capitalised: ``mean``, ``mc-8``, ``cvp-minus-norm``."""
    slug = slug.lower()
    if sampled := re.fullmatch(r"mc-([1-9]\d*)", slug):
        return monte_carlo(int(sampled[1]))
    if slug not in METHODS:
        near = difflib.get_close_matches(slug, METHODS, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"there is no method {slug!r}{meant}; there are mc-<samples>, {', '.join(METHODS)}")
    return METHODS[slug]


def listed(text: str) -> list[Method]:
    """The methods of a list of slugs, each once: ``mean,mc-8,cvp``."""
    return list(dict.fromkeys(named(slug.strip()) for slug in text.split(",")))


def method_of(slug: str) -> Method:
    """The method of a stored row; one of the user's own is called by its slug."""
    try:
        return named(slug)
    except InputError:
        return Method(slug, slug)


def ablate(
    model: nn.Module,
    posterior: Posterior,
    batches: Any,
    *,
    methods: Iterable[Method] = tuple(ABLATIONS.values()),
    output: Output = None,
    **settings: Any,
) -> dict[str, MomentNet]:
    """A calibrated network for each method, by slug. ``settings`` are those of ``calibrate``.

    Each rule set is lifted once.
    """

    @functools.cache
    def lifted(rules: RuleSet) -> MomentNet:
        return propagate(model, posterior, rules, output=output)

    nets: dict[str, MomentNet] = {}
    for method in methods:
        if method.rules is None or method.slug in nets:
            raise InputError(f"{method.slug!r} is no ablation: give methods with rules, each with a slug of its own")
        options = {"procedure": method.procedure, **settings}
        nets[method.slug] = calibrate(lifted(method.rules), batches, scales=method.scales, **options)
    return nets
