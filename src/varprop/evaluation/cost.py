"""What a pass costs: compiled, side by side, in passes of the plain network and of one sampled network."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from varprop.evaluation.methods import Method
from varprop.network.moment_net import propagate
from varprop.posterior import Posterior
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.predictors import device_of
from varprop.rules import RuleSet

Cost = dict[str, float]
Passes = dict[RuleSet | str, Callable[[], Any]]
PLAIN, DRAW = "plain", "draw"


@torch.no_grad()
def relative_costs(
    methods: Sequence[Method], model: nn.Module, posterior: Posterior, *args: Any, rounds: int = 9, **kwargs: Any
) -> dict[str, Cost]:
    """The median time of each method's call, by slug: in plain passes, and in Monte Carlo samples (``sample``).

    Networks are compiled and take turns, so that noise hits all alike. Methods with the same rules share a network:
    scales and temperatures cost nothing. A sample is a plain pass and the draw of its weights. Where networks cannot
    be compiled, for lack of a C++ compiler, there is a warning and no cost: without it the times say little.
    """
    model(*args, **kwargs)  # so that inputs it cannot take are not taken for a failure of the compiler
    compiled = torch.compile(model)
    passes: Passes = {PLAIN: lambda: compiled(*args, **kwargs)}
    for rules in {method.rules for method in methods if method.rules is not None}:
        passes[rules] = _propagation(model, posterior, rules, args, kwargs)
    try:
        for each in passes.values():
            each()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        warnings.warn(f"costs are not measured: this network could not be compiled here ({reason})", stacklevel=3)
        return {}
    draws = iter(MonteCarlo(model, posterior, 1 + rounds).weights())
    passes[DRAW] = lambda: next(draws)
    next(draws)
    medians = _medians(passes, rounds, device_of(model))
    plain, sample = medians[PLAIN], medians[PLAIN] + medians[DRAW]

    def cost(method: Method) -> float:
        return medians[method.rules or PLAIN] if method.samples is None else method.samples * sample

    return {method.slug: {"plain": cost(method) / plain, "sample": cost(method) / sample} for method in methods}


def _propagation(model: nn.Module, posterior: Posterior, rules: RuleSet, args: Any, kwargs: Any) -> Callable[[], Any]:
    """A pass of the propagated network, to be compiled by its first call.

    Of its graph, not of the network: torch compiles the code of one class for a few of its instances only.
    """
    plan, leaves = propagate(model, posterior, rules).plan(args, kwargs)
    compiled = torch.compile(plan.module, fullgraph=True)
    return lambda: compiled(*leaves)


def _medians(passes: Passes, rounds: int, device: torch.device) -> dict[RuleSet | str, float]:
    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    seconds: dict[RuleSet | str, list[float]] = {key: [] for key in passes}
    for _ in range(rounds):
        for key, run in passes.items():
            start = now()
            run()
            seconds[key].append(now() - start)
    return {key: statistics.median(found) for key, found in seconds.items()}
