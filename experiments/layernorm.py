"""LayerNorm's rules against sampling: for synthetic inputs, and for those inside a propagated network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from experiments.paper.norms import MOST, Norms
from varprop.errors import InputError
from varprop.moments import Moments
from varprop.network.moment_net import MomentNet
from varprop.rules import CVP, STREAMLINING, RuleSet

RULES: dict[str, RuleSet] = {"cvp": CVP, "streamlining": STREAMLINING}
WIDTHS = (0.5, 2.0, 5.0, 10.0)
"""Of the uniform distributions that synthetic variances come from."""
_CHUNK = 1 << 22  # numbers drawn at a time

_layer_norm = torch.ops.aten.layer_norm.default


class Norm(NamedTuple):
    """A LayerNorm with constant weights, and what it gets."""

    x: Moments
    shape: Sequence[int]
    weight: Tensor | None
    bias: Tensor | None
    eps: float


def synthetic(
    seed: int = 0, *, widths: Iterable[float] = WIDTHS, features: int = 192, vectors: int = 64, samples: int = 4000
) -> tuple[Norms, ...]:
    """Inputs with μ ~ N(0, 1) and Σ ~ U(0, w), one comparison for each w; γ and β are drawn once and fixed."""
    generator = torch.Generator().manual_seed(seed)
    weight = 0.5 + torch.rand(features, generator=generator)
    bias = 0.5 * torch.randn(features, generator=generator)
    found = []
    for width in widths:
        mean = torch.randn(vectors, features, generator=generator)
        var = width * torch.rand(vectors, features, generator=generator)
        norm = Norm(Moments(mean, var), (features,), weight, bias, 1e-5)
        found.append(compare(f"Σ ~ U(0, {width:g})", [norm], samples, generator))
    return tuple(found)


def traced(net: MomentNet, *args: Any, samples: int = 200, seed: int = 0, **kwargs: Any) -> Norms:
    """All LayerNorms of a network at once, with the inputs they get in one pass, α included; γ and β at their means."""
    modules, scales = dict(net._model[0].named_modules()), net.scales
    norms = []
    for path, x in net.trace(*args, **kwargs).inputs.items():
        name = path.partition("#")[0]  # a module called again has a number
        module = modules.get(name)
        if isinstance(module, nn.LayerNorm) and isinstance(x, Moments):
            paths = f"{name}.weight", f"{name}.bias"
            weight, bias = (net.mean[each].detach() if each in net.mean else None for each in paths)
            scaled = Moments(x.mean, x.var * scales.get(path, 1.0))
            norms.append(Norm(scaled, module.normalized_shape, weight, bias, module.eps))
    if not norms:
        raise InputError("no LayerNorm of this network gets a random input: there is nothing to compare")
    generator = torch.Generator(net.device).manual_seed(seed)
    return compare(type(net._model[0]).__name__, norms, samples, generator)


@torch.no_grad()
def compare(title: str, norms: Sequence[Norm], samples: int, generator: torch.Generator) -> Norms:
    """Root mean squared errors over the activations of all norms together, and some points evenly spread over them."""
    if samples < 2:
        raise InputError(f"a variance needs at least 2 samples, not {samples}")
    parts: list[list[Tensor]] = []
    for norm in norms:
        sampled = _sampled(norm, samples, generator)
        ruled = [rules[_layer_norm](*norm) for rules in RULES.values()]
        parts.append([torch.stack([found[i].flatten() for found in (sampled, *ruled)], -1).double() for i in (0, 1)])
    joined = dict(zip(("mean", "var"), map(torch.cat, zip(*parts, strict=True)), strict=True))
    rmse = {
        rule: {name: float((found[:, i] - found[:, 0]).square().mean().sqrt()) for name, found in joined.items()}
        for i, rule in enumerate(RULES, start=1)
    }
    count = len(joined["mean"])
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:MOST]
    points = {name: found.cpu()[chosen].numpy().astype(np.float32) for name, found in joined.items()}
    return Norms(title, samples, count, rmse, points)


def _sampled(norm: Norm, samples: int, generator: torch.Generator) -> Moments:
    """Mean and variance of what the norm makes of drawn inputs."""
    x, shape, weight, bias, eps = norm
    centre = torch.nn.functional.layer_norm(x.mean, tuple(shape), weight, bias, eps)  # keeps sums of squares small
    total, squares = (torch.zeros_like(centre, dtype=torch.float64) for _ in range(2))
    std, left = x.var.sqrt(), samples
    while left:
        size = min(left, max(1, _CHUNK // x.mean.numel()))
        noise = torch.randn(size, *x.mean.shape, generator=generator, device=x.mean.device, dtype=x.mean.dtype)
        drawn = torch.nn.functional.layer_norm(x.mean + std * noise, tuple(shape), weight, bias, eps)
        away = (drawn - centre).double()
        total += away.sum(0)
        squares += away.square().sum(0)
        left -= size
    mean = total / samples
    return Moments(centre + mean, (squares - samples * mean.square()) / (samples - 1))
