"""What a pass costs: compiled, side by side, in passes of the plain network and of one sampled network."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from varprop.calibrate.ablation import ABLATIONS
from varprop.methods import named, samples_of
from varprop.posterior import Posterior
from varprop.predict.predictors import MonteCarlo, device_of
from varprop.propagate.network import propagate

Cost = dict[str, float]


@torch.no_grad()
def relative_costs(
    methods: Sequence[str], model: nn.Module, posterior: Posterior, *args: Any, rounds: int = 9, **kwargs: Any
) -> dict[str, Cost]:
    """For each method the median time of a call, ``plain`` and ``sample``: in plain passes, in Monte Carlo samples.

    Networks are compiled and take turns, so that noise hits all alike. Methods with the same rules share a network:
    scales and temperatures cost nothing. A sample is a plain pass and the draw of its weights.
    """
    methods = [named(method) for method in methods]
    functions: dict[str, Callable[..., Any]] = {"plain": torch.compile(model)}
    for name in methods:
        if name in ABLATIONS and (rules := ABLATIONS[name].rules).name not in functions:
            net = propagate(model, posterior, rules)
            net.capture(*args, **kwargs)
            functions[rules.name] = torch.compile(net, fullgraph=True)
    draws = iter(MonteCarlo(model, posterior, 2 + rounds).weights())
    device = device_of(model)
    functions["draw"] = lambda *_, **__: next(draws)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function(*args, **kwargs)
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(_seconds(function, args, kwargs, device))
    medians = {name: statistics.median(values) for name, values in times.items()}
    plain, sample = medians["plain"], medians["plain"] + medians["draw"]

    def cost(method: str) -> float:
        count = samples_of(method)
        if count is not None:
            return count * sample
        return medians[ABLATIONS[method].rules.name] if method in ABLATIONS else plain

    return {method: {"plain": cost(method) / plain, "sample": cost(method) / sample} for method in methods}


def _seconds(function: Callable[..., Any], args: Any, kwargs: Any, device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    function(*args, **kwargs)
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
