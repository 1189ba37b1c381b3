"""The Gaussian of a network of mean-field variational layers, by the names of the plain network.

Layers are known by the names of their parameters: a mean ``mu_weight`` or ``weight_mu`` with a spread beside it
(bayesian-torch, torchbnn and others), or a child ``weight_sampler`` with ``mu`` and ``rho`` (blitz, torch-uncertainty).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from varprop.errors import PosteriorError, PosteriorMismatchError, listing, shortened
from varprop.moments import Moments
from varprop.posterior.binding import Layout, layout, mismatches, unwrapped
from varprop.posterior.tensors import nonfinite, widened

# The variance from what layers keep instead of it.
_VARIANCE: dict[str, Callable[[Tensor], Tensor]] = {
    "rho": lambda x: softplus(x).square(),
    "log_sigma": lambda x: (2 * x).exp(),
    "log_std": lambda x: (2 * x).exp(),
    "log_var": torch.exp,
    "logvar": torch.exp,
    "sigma": torch.square,
    "std": torch.square,
}
_DIRECT = ("sigma", "std")
_KNOWN = "mu_weight with rho_weight, weight_mu with weight_rho, weight_log_sigma or weight_sigma, and the like"
_WEIGHT = ("kernel", "W")  # other names of what torch's layers call weight


class _Random(NamedTuple):
    """One random parameter: the path it should have in the plain network, where it was found, and its moments."""

    path: str
    origin: str
    mean: Tensor
    spread: Tensor
    kind: str


def moments(model: nn.Module, bayesian: nn.Module) -> dict[str, Moments]:
    """Of the random parameters, after checking that all others have the same values in both networks."""
    if not isinstance(bayesian, nn.Module):
        raise PosteriorError(f"from_vi(model, bayesian): a {type(bayesian).__name__} is no Bayesian network")
    bayesian = unwrapped(bayesian)
    randoms, others = _inventory(bayesian)
    if not randoms:
        headline = f"no mean-field layers in this {type(bayesian).__name__}; its parameters are"
        own = [f"{name} {tuple(p.shape)}" for name, p in bayesian.named_parameters()]
        remedy = f"Known are layers with {_KNOWN}. Other layouts come in by from_tensors."
        raise PosteriorError(listing(headline, shortened(own), remedy))
    wanted = layout(model)
    found: dict[str, _Random] = {}
    problems = [*_unusable(randoms)]
    for random in randoms:
        name = _target(random.path, wanted.canonical)
        if found.setdefault(name, random) is not random:
            problems.append(f"{name!r} has two posteriors, from {found[name].origin} and from {random.origin}")
    problems += mismatches({name: random.mean for name, random in found.items()}, model)
    problems += _unmatched(wanted, found, others)
    if problems:
        headline = f"{type(bayesian).__name__} and {type(model).__name__} do not correspond"
        remedy = f"Give the plain network with the same module names. Known are layers with {_KNOWN}."
        raise PosteriorMismatchError(listing(headline, shortened(problems), remedy))
    _refuse_other_constants(model, bayesian)
    with torch.no_grad():
        return {name: Moments(r.mean, _VARIANCE[r.kind](widened(r.spread))) for name, r in found.items()}


def _inventory(bayesian: nn.Module) -> tuple[list[_Random], dict[str, nn.Parameter]]:
    """All random parameters, and those that are none, by name."""
    randoms: list[_Random] = []
    others: dict[str, nn.Parameter] = {}
    samplers: set[nn.Module] = set()
    for path, module in bayesian.named_modules():
        if module in samplers:
            continue
        # A sampler's own parameters count, not the layer's: moving a model to another device parts them.
        sampled = dict(_samplers(module))
        samplers.update(sampled.values())
        unused = {"bias"} if getattr(module, "bias", None) is False else set()  # blitz keeps parameters of such a bias
        for base, sampler in sampled.items():
            if base not in unused:
                origin = f"{base}_sampler of {type(module).__name__}"
                randoms.append(_Random(_join(path, base), origin, sampler.mu, sampler.rho, "rho"))
        own = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        pairs = dict(_pairs(path, module, own))
        randoms += [pair for base, pair in pairs.items() if base not in sampled.keys() | unused]
        paired = {id(tensor) for pair in pairs.values() for tensor in (pair.mean, pair.spread)}
        others |= {_join(path, name): p for name, p in own.items() if id(p) not in paired}
    return randoms, others


def _samplers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, child in module.named_children():
        base, _, word = name.rpartition("_")
        if word == "sampler" and base and {own for own, _ in child.named_parameters(recurse=False)} == {"mu", "rho"}:
            yield base, child


def _pairs(path: str, module: nn.Module, own: Mapping[str, nn.Parameter]) -> Iterator[tuple[str, _Random]]:
    for name, mean in own.items():
        base = name.removeprefix("mu_").removesuffix("_mu")
        if base == name:
            continue
        partner = "{kind}_{base}" if name.startswith("mu_") else "{base}_{kind}"
        for kind in _VARIANCE:
            spread = partner.format(kind=kind, base=base)
            if spread in own:
                origin = f"{name} and {spread} of {type(module).__name__}"
                yield base, _Random(_join(path, base), origin, mean, own[spread], kind)
                break


def _target(path: str, names: Mapping[str, str]) -> str:
    """The plain network's name; the path itself if it has none, which is reported later."""
    parent, _, base = path.rpartition(".")
    if path not in names and base in _WEIGHT:
        path = _join(parent, "weight")
    return names.get(path, path)


def _unusable(randoms: list[_Random]) -> Iterator[str]:
    for random in randoms:
        if random.mean.shape != random.spread.shape:
            yield f"{random.origin} have shapes {tuple(random.mean.shape)} and {tuple(random.spread.shape)}"
        for tensor in (random.mean, random.spread):
            if fault := nonfinite(tensor):
                yield f"{random.origin}: one {fault}"
        if random.kind in _DIRECT and (wrong := int((random.spread < 0).sum())):
            yield (
                f"{random.origin}: {wrong} of {random.spread.numel()} standard deviations are negative, so they are "
                "something else; convert them and use from_tensors"
            )


def _unmatched(wanted: Layout, found: Mapping[str, _Random], others: Mapping[str, nn.Parameter]) -> Iterator[str]:
    canonical, parameters, _ = wanted
    for name, parameter in others.items():
        if name not in canonical:
            yield f"{name!r} {tuple(parameter.shape)} is neither random nor a parameter of the plain network"
    covered = set(found) | {canonical[name] for name in others if name in canonical}
    yield from (f"{name!r} of the plain network has no counterpart" for name in parameters if name not in covered)


def _refuse_other_constants(model: nn.Module, bayesian: nn.Module) -> None:
    """A posterior holds only what is random; the rest is the plain network's, which must not be a different one."""
    ours, theirs = model.state_dict(), bayesian.state_dict()
    differing = [
        f"{name!r}"
        for name, value in theirs.items()
        if isinstance(value, Tensor) and isinstance(ours.get(name), Tensor) and not _equal(ours[name], value)
    ]
    if differing:
        headline = f"these values of {type(model).__name__} are not random and differ from the Bayesian network's"
        remedy = "Copy them first: model.load_state_dict(bayesian.state_dict(), strict=False)"
        raise PosteriorMismatchError(listing(headline, shortened(differing), remedy))


def _equal(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and torch.equal(ours, theirs.to(ours.device, ours.dtype))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
