"""A posterior bound to a model: each of its names resolved to one parameter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from varprop.errors import DeviceMismatchError, PosteriorMismatchError
from varprop.moments import Moments
from varprop.posterior.names import did_you_mean
from varprop.posterior.tensors import cast, listing


def bind(moments: Mapping[str, Moments], model: nn.Module) -> dict[str, Moments]:
    """Moments by the name that ``model.named_parameters()`` gives each parameter, in the parameter's dtype.

    A tied parameter is one tensor with several names. ``named_parameters()`` lists it once, the posterior may use
    any of its names; so names are resolved by identity.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    canonical = {id(parameter): name for name, parameter in model.named_parameters()}
    problems = _mismatches(moments, model, parameters) + _conflicts(moments, parameters)
    if problems:
        headline = f"the posterior does not fit {type(model).__name__}"
        remedy = "Names are those of model.named_parameters(); posterior.restrict(...) drops what does not belong."
        raise PosteriorMismatchError(listing(headline, problems, remedy))
    _check_devices(moments, parameters)
    return {
        canonical[id(parameters[name])]: cast(name, pair, None, parameters[name].dtype)
        for name, pair in moments.items()
    }


def _mismatches(moments: Mapping[str, Moments], model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> list[str]:
    buffers = dict(model.named_buffers(remove_duplicate=False))
    found = []
    for name, pair in moments.items():
        parameter = parameters.get(name)
        if name in buffers:
            found.append(f"{name!r} is a buffer: buffers are constants, leave it out of the posterior")
        elif parameter is None:
            found.append(f"{name!r} is not a parameter of the model{did_you_mean(name, parameters)}")
        elif nn.parameter.is_lazy(parameter):
            found.append(f"{name!r} is not initialised yet: call the model once first")
        elif not parameter.is_floating_point():
            found.append(f"{name!r} is {parameter.dtype} in the model: only floating point parameters can be random")
        elif parameter.shape != pair.shape:
            found.append(f"{name!r} has shape {tuple(pair.shape)}, in the model {tuple(parameter.shape)}")
    return found


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
    return all(
        x.shape == y.shape and x.dtype == y.dtype and x.device == y.device and torch.equal(x, y)
        for x, y in zip(a, b, strict=True)
    )


def _check_devices(moments: Mapping[str, Moments], parameters: Mapping[str, nn.Parameter]) -> None:
    apart = [name for name, pair in moments.items() if pair.mean.device != parameters[name].device]
    if not apart:
        return
    here, there = moments[apart[0]].mean.device, parameters[apart[0]].device
    several = len({parameter.device for parameter in parameters.values()}) > 1
    remedy = (
        "the model is spread over devices: give from_tensors each tensor on the device of its parameter"
        if several
        else f'move it with posterior.to("{there}")'
    )
    raise DeviceMismatchError(
        f"the posterior is on {here}, the model on {there} ({len(apart)} of {len(moments)} tensors differ, "
        f"first {apart[0]!r}): {remedy}"
    )
