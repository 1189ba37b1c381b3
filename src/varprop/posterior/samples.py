"""The Gaussian with the mean and variance of several sets of weights: models, state dicts, safetensors files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from varprop.errors import PosteriorError, PosteriorMismatchError, listing, shortened
from varprop.moments import Moments
from varprop.posterior.binding import Layout, Tensors, layout, unwrapped, without_prefix
from varprop.posterior.file import contents
from varprop.posterior.names import did_you_mean
from varprop.posterior.running import Running
from varprop.posterior.tensors import nonfinite, unusable

Source = nn.Module | Mapping[str, Tensor] | str | os.PathLike[str]

_NOT_OPENED = ". Other formats can run code and are not opened: pass torch.load(path, weights_only=True)."


def moments(model: nn.Module, samples: Iterable[Any]) -> dict[str, Moments]:
    """With unbiased variances, by parameter name, in one pass that holds one sample at a time."""
    if isinstance(samples, nn.Module | Mapping | str | os.PathLike) or not isinstance(samples, Iterable):
        raise PosteriorError(f"from_samples(model, samples): samples are several, not one {type(samples).__name__}")
    wanted = layout(model)
    running = Running()
    problems: list[str] = []
    for index, sample in enumerate(samples):
        try:
            weights, wrong = read(sample, wanted)
        except PosteriorError as error:
            wrong = [str(error)]
        problems += [f"sample {index}: {problem}" for problem in shortened(wrong)]
        if not problems:  # after the first mistake we only look for further ones
            running.add(weights)
    if problems:
        headline = f"these samples are not the weights of one {type(model).__name__}"
        raise PosteriorMismatchError(listing(headline, problems))
    if running.count < 2:
        raise PosteriorError(f"a variance needs at least 2 samples, and there are {running.count}")
    mean, var = running.mean(), running.var(correction=1)
    remedy = "state_dict() refers to the live weights, so copy them: copy.deepcopy(model.state_dict())"
    refuse_constant(var, f"the {running.count} samples", remedy)
    # What the samples share with the model is left out: a frozen backbone need not carry zeros through the network.
    differs = {name: mean[name].to(p.device, p.dtype) != p.detach() for name, p in wanted.parameters.items()}
    kept = [name for name in mean if bool((var[name] != 0).any() or differs[name].any())]
    return {name: Moments(mean[name], var[name]) for name in kept}


def refuse_constant(var: Mapping[str, Tensor], what: str, remedy: str) -> None:
    """Weights that never differ are a mistake in how they were gathered, not a certain posterior."""
    if not any(bool((tensor != 0).any()) for tensor in var.values()):
        raise PosteriorError(f"{what} are all the same, so there is no variance in them: {remedy}")


def read(source: Any, wanted: Layout) -> tuple[Tensors, list[str]]:
    """The weights in ``source`` by the model's names, and all that is wrong with them. Buffers are left out."""
    weights: Tensors = {}
    problems = []
    known = wanted.canonical.keys() | wanted.constants
    for key, tensor in _tensors_of(source).items():
        name = without_prefix(str(key), known)
        if name in wanted.canonical:
            weights.setdefault(wanted.canonical[name], tensor)
        elif name not in wanted.constants and name != "n_averaged" and not name.endswith("_extra_state"):
            problems.append(f"{key!r} is not in the model{did_you_mean(str(key), wanted.canonical)}")
    problems = [f"{name!r} is missing" for name in wanted.parameters if name not in weights] + problems
    for name, tensor in weights.items():
        if fault := _fault(tensor, wanted.parameters[name]):
            problems.append(f"{name!r} {fault}")
    return weights, problems


def _tensors_of(source: Any) -> Mapping[str, Any]:
    if isinstance(source, nn.Module):
        return dict(unwrapped(source).named_parameters(remove_duplicate=False))
    if isinstance(source, Mapping):
        return source
    if isinstance(source, str | os.PathLike):
        return contents(source, _NOT_OPENED)[1]
    raise PosteriorError(f"a {type(source).__name__} is no model, state dict or path of a safetensors file")


def _fault(tensor: Any, parameter: nn.Parameter) -> str | None:
    if fault := unusable(tensor):
        return fault
    if tensor.shape != parameter.shape:
        return f"has shape {tuple(tensor.shape)}, in the model {tuple(parameter.shape)}"
    return nonfinite(tensor)
