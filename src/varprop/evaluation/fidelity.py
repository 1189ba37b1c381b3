"""How near the propagated moments are to those of sampled networks, module by module."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from varprop.errors import InputError
from varprop.graph.export import watched
from varprop.graph.interpreter import OUTPUT
from varprop.graph.output import run
from varprop.moments import Moments, is_random
from varprop.network.moment_net import MomentNet
from varprop.posterior.running import Running
from varprop.prediction.monte_carlo import MonteCarlo
from varprop.prediction.predictors import device_of


@dataclass(frozen=True)
class Fidelity:
    """One module's output beside the samples."""

    path: str
    module: str
    variance_ratio: float
    """Propagated variance over sampled variance, both summed over all entries: below 1, too small."""
    correlation: float
    """Between the logarithms of the two variances, over entries: does the variance sit in the right places?"""
    mean_error: float
    """Root mean square difference of the means, in standard deviations of the samples."""
    plain_error: float
    """The same for the plain network, whose means are those of the weights."""


@dataclass(frozen=True)
class Comparison:
    """A row for each module whose output is random, in the order they run; the last one is the network's output.

    ``noise`` is what the means of the samples themselves are off by, in standard deviations: 1/√samples.
    """

    rows: tuple[Fidelity, ...]
    samples: int

    @property
    def noise(self) -> float:
        return 1 / math.sqrt(self.samples)

    @property
    def output(self) -> Fidelity:
        return self.rows[-1]

    def __iter__(self) -> Iterator[Fidelity]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        header = ("module", "class", "variance ratio", "correlation", "mean error", "plain network's")
        title = (
            f"beside {self.samples} sampled networks; errors of the mean in standard deviations, "
            f"of which the samples' own is {self.noise:.3f}"
        )
        formats = ("", "", ".3f", ".2f", ".3f", ".3f")
        table = tabulate(map(astuple, self.rows), header, "plain", floatfmt=formats, disable_numparse=[0, 1])
        return f"{title}\n{table}"


@torch.no_grad()
def compare(net: MomentNet, samples: MonteCarlo, *args: Any, **kwargs: Any) -> Comparison:
    """Compare what ``net`` propagates to every module with what ``samples`` of the network have there.

    Give a few inputs: the outputs of all modules are kept, three times over.
    """
    if not isinstance(samples, MonteCarlo):
        raise InputError(f"compare(net, MonteCarlo(...), *inputs) takes a MonteCarlo second, not a {samples}")
    if samples.samples < 2:
        raise InputError("a variance needs at least 2 samples")
    trace, output = net.trace(*args, **kwargs), net(*args, **kwargs)
    predicted = {path: value for path, value in trace.items() if path and isinstance(value, Moments)}
    predicted[OUTPUT] = output
    plain = _outputs(samples, {}, args, kwargs)
    running = Running(device_of(samples.model))
    for weights in samples.weights():
        running.add({path: x for path, x in _outputs(samples, weights, args, kwargs).items() if path in predicted})
    mean, var = running.mean(), running.var(correction=1)
    modules = {path: type(module).__name__ for path, module in samples.model.named_modules()}
    rows = [
        _fidelity(path, modules.get(path.partition("#")[0], ""), moments, Moments(mean[path], var[path]), plain[path])
        for path, moments in predicted.items()
        if is_random(moments) and moments.shape == mean[path].shape
    ]
    return Comparison(tuple(rows), samples.samples)


def _outputs(samples: MonteCarlo, weights: dict[str, Tensor], args: Any, kwargs: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}

    def note(kind: str, path: str, x: Tensor) -> None:
        if kind == "out" and x.is_floating_point():
            found[path] = x.detach().clone()  # what follows may write to it, as an in-place ReLU does

    with watched(samples.model, note):
        found[OUTPUT] = run(samples.model, weights, args, kwargs, samples.output)
    return found


def _fidelity(path: str, module: str, moments: Moments, sampled: Moments, plain: Tensor) -> Fidelity:
    moments = Moments(*(x.to(sampled.mean.dtype) for x in moments))
    width = sampled.var.mean().sqrt().clamp(min=torch.finfo(sampled.var.dtype).tiny)
    both = (moments.var > 0) & (sampled.var > 0)
    logs = torch.stack([moments.var[both].log(), sampled.var[both].log()])
    return Fidelity(
        path=path,
        module=module,
        variance_ratio=float(moments.var.sum() / sampled.var.sum()),
        correlation=float(torch.corrcoef(logs)[0, 1]) if both.sum() > 1 else math.nan,
        mean_error=float((moments.mean - sampled.mean).square().mean().sqrt() / width),
        plain_error=float((plain - sampled.mean).square().mean().sqrt() / width),
    )
