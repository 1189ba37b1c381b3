"""Names of weights resolved to the parameters of one model, wrapped or not, tied or not."""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from varprop.errors import DeviceMismatchError, PosteriorError, PosteriorMismatchError, listing, shortened
from varprop.moments import Moments
from varprop.posterior.names import did_you_mean
from varprop.posterior.tensors import cast

Tensors = dict[str, Tensor]

# What DataParallel, DistributedDataParallel, AveragedModel and torch.compile put in front of the names.
_PREFIXES = ("module.", "_orig_mod.")


class Layout(NamedTuple):
    """What a model's weights are called: every alias of a parameter, the parameters themselves, and the constants."""

    canonical: dict[str, str]
    parameters: dict[str, nn.Parameter]
    constants: frozenset[str]


def layout(model: nn.Module) -> Layout:
    parameters = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
    names = {id(p): name for name, p in parameters.items()}
    every = dict(model.named_parameters(remove_duplicate=False))
    # Integer parameters cannot be random: like buffers they are constants of the model.
    constants = [name for name, p in every.items() if id(p) not in names]
    constants += [name for name, _ in model.named_buffers(remove_duplicate=False)]
    return Layout({a: names[id(p)] for a, p in every.items() if id(p) in names}, parameters, frozenset(constants))


def unwrapped(model: nn.Module) -> nn.Module:
    """The model below the wrappers that only prefix its names."""
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel | AveragedModel):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), nn.Module):  # torch.compile
            model = inner
        else:
            return model


def without_prefix(name: str, known: Container[str]) -> str:
    """The name without what wrappers put in front of it; a known name stays as it is."""
    while name not in known and name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name


def check_model(model: Any, call: str) -> nn.Module:
    """``model``, or an error if the arguments are in the wrong order."""
    if not isinstance(model, nn.Module):
        raise PosteriorError(f"{call}: the model comes first, not {type(model).__name__}")
    return model


def mismatches(named: Mapping[str, Any], model: nn.Module) -> list[str]:
    """Names that are no floating point parameter of the model, or have another shape there."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    found = []
    for name, value in named.items():
        parameter = parameters.get(name)
        if name in buffers:
            found.append(f"{name!r} is a buffer: buffers are constants, leave it out of the posterior")
        elif parameter is None:
            found.append(f"{name!r} is not a parameter of the model{did_you_mean(name, parameters)}")
        elif nn.parameter.is_lazy(parameter):
            found.append(f"{name!r} is not initialised yet: call the model once first")
        elif not parameter.is_floating_point():
            found.append(f"{name!r} is {parameter.dtype} in the model: only floating point parameters can be random")
        elif parameter.shape != value.shape:
            found.append(f"{name!r} has shape {tuple(value.shape)}, in the model {tuple(parameter.shape)}")
    return found


@torch.no_grad()
def cast_to_model(model: nn.Module, moments: Mapping[str, Moments]) -> dict[str, Moments]:
    """Moments in the dtype and on the device of the parameters they belong to.

    They are named as in the model below its wrappers, and returned by the names of the model given.
    """
    inner = unwrapped(model)
    if problems := mismatches(moments, inner):
        headline = f"these weights do not fit {type(model).__name__}"
        raise PosteriorMismatchError(listing(headline, shortened(problems), "Give the model they were collected from."))
    parameters = dict(inner.named_parameters(remove_duplicate=False))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    own = {name: parameters[name] for name in moments}
    return {names[id(p)]: cast(name, moments[name], p.device, p.dtype) for name, p in own.items()}


def bind(moments: Mapping[str, Moments], model: nn.Module) -> dict[str, Moments]:
    """Moments by the name that ``model.named_parameters()`` gives each parameter, in its dtype and memory layout.

    A tied parameter is one tensor with several names. ``named_parameters()`` lists it once, the posterior may use
    any of its names; so names are resolved by identity.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    canonical = {id(parameter): name for name, parameter in model.named_parameters()}
    if problems := mismatches(moments, model) + _conflicts(moments, parameters):
        headline = f"the posterior does not fit {type(model).__name__}"
        remedy = "Names are those of model.named_parameters(); posterior.restrict(...) drops what does not belong."
        raise PosteriorMismatchError(listing(headline, problems, remedy))
    _check_devices(moments, parameters)
    return {
        canonical[id(parameters[name])]: _laid_out(cast(name, pair, None, parameters[name].dtype), parameters[name])
        for name, pair in moments.items()
    }


def _laid_out(moments: Moments, parameter: nn.Parameter) -> Moments:
    """With dimensions in memory in the order of the parameter's; a posterior read from a file has the usual one."""
    like = functools.partial(torch.empty_like, parameter, requires_grad=False)
    return Moments(*(x if x.stride() == parameter.stride() else like().copy_(x) for x in moments))


def _conflicts(moments: Mapping[str, Moments], parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """Several names of one tied parameter must agree."""
    first: dict[int, str] = {}
    found = []
    for name in moments:
        if name in parameters:
            other = first.setdefault(id(parameters[name]), name)
            if other != name and not _same(moments[other], moments[name]):
                found.append(f"{other!r} and {name!r} are one tied parameter with two different posteriors: keep one")
    return found


def _same(a: Moments, b: Moments) -> bool:
    return all(x.dtype == y.dtype and x.device == y.device and torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _check_devices(moments: Mapping[str, Moments], parameters: Mapping[str, nn.Parameter]) -> None:
    apart = [name for name, pair in moments.items() if pair.mean.device != parameters[name].device]
    if not apart:
        return
    here, there = moments[apart[0]].mean.device, parameters[apart[0]].device
    remedy = f'move it with posterior.to("{there}")'
    if len({parameter.device for parameter in parameters.values()}) > 1:
        remedy = "the model is spread over devices: give from_tensors each tensor on the device of its parameter"
    raise DeviceMismatchError(
        f"the posterior is on {here}, the model on {there} ({len(apart)} of {len(moments)} tensors differ, "
        f"first {apart[0]!r}): {remedy}"
    )
