"""What a pass costs: compiled, side by side, in passes of the plain network and of one sampled network."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from varprop.evaluation.methods import named, samples_of, variant
from varprop.network.moment_net import propagate
from varprop.posterior import Posterior
from varprop.prediction.predictors import MonteCarlo, device_of

Cost = dict[str, float]


@torch.no_grad()
def relative_costs(
    methods: Sequence[str], model: nn.Module, posterior: Posterior, *args: Any, rounds: int = 9, **kwargs: Any
) -> dict[str, Cost]:
    """For each method the median time of a call, ``plain`` and ``sample``: in plain passes, in Monte Carlo samples.

    Networks are compiled and take turns, so that noise hits all alike. Methods with the same rules share a network:
    scales and temperatures cost nothing. A sample is a plain pass and the draw of its weights. Where networks cannot
    be compiled, for lack of a C++ compiler, there is a warning and no cost: without it the times say little.
    """
    methods = [named(method) for method in methods]
    model(*args, **kwargs)  # so that inputs it cannot take are not taken for a failure of the compiler
    functions = _functions(methods, model, posterior, args, kwargs)
    try:
        for function in functions.values():
            function(*args, **kwargs)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        warnings.warn(f"costs are not measured: this network could not be compiled here ({reason})", stacklevel=3)
        return {}
    draws = iter(MonteCarlo(model, posterior, 1 + rounds).weights())
    functions["draw"] = lambda *_, **__: next(draws)
    next(draws)
    medians = _medians(functions, args, kwargs, rounds, device_of(model))
    plain, sample = medians["plain"], medians["plain"] + medians["draw"]

    def cost(method: str) -> float:
        count = samples_of(method)
        if count is not None:
            return count * sample
        found = variant(method)
        return plain if found is None else medians[found.rules.name]

    return {method: {"plain": cost(method) / plain, "sample": cost(method) / sample} for method in methods}


def _functions(
    methods: Sequence[str], model: nn.Module, posterior: Posterior, args: Any, kwargs: Any
) -> dict[str, Callable[..., Any]]:
    """The networks to time, to be compiled by their first call."""
    functions: dict[str, Callable[..., Any]] = {"plain": torch.compile(model)}
    for name in methods:
        found = variant(name)
        if found is not None and found.rules.name not in functions:
            plan, leaves = propagate(model, posterior, found.rules).plan(args, kwargs)
            functions[found.rules.name] = _bound(torch.compile(plan.module, fullgraph=True), leaves)
    return functions


def _medians(
    functions: dict[str, Callable[..., Any]], args: Any, kwargs: Any, rounds: int, device: torch.device
) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(_seconds(function, args, kwargs, device))
    return {name: statistics.median(values) for name, values in times.items()}


def _bound(module: Callable[..., Any], leaves: list[Tensor]) -> Callable[..., Any]:
    """Of a graph, not of a network: torch compiles the code of one class for so many of its instances and no more."""
    return lambda *_, **__: module(*leaves)


def _seconds(function: Callable[..., Any], args: Any, kwargs: Any, device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    function(*args, **kwargs)
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
