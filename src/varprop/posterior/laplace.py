"""The Gaussian of a fitted diagonal Laplace approximation of laplace-torch, read by duck typing.

That library keeps one flat mean and one flat variance. What they cover depends on the subset of weights: all trainable
parameters of the model, those of the last layer of a copy of the model, or some entries of all trainable parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from varprop.errors import PosteriorError, PosteriorMismatchError, listing
from varprop.moments import Moments
from varprop.posterior.binding import Tensors, mismatches

_Named = list[tuple[str, nn.Parameter]]


def moments(model: nn.Module, la: Any) -> dict[str, Moments]:
    """By parameter name, as the library's own ``mean`` and ``posterior_variance``."""
    subset = _diagonal_subset(la)
    if not getattr(la, "n_data", 0):
        raise PosteriorError(f"this {type(la).__name__} is not fitted: call la.fit(train_loader) first")
    fitted = _fitted(la, subset)
    names = _names(model, la, fitted)
    mean, var = la.mean.detach().reshape(-1), la.posterior_variance.detach().reshape(-1)
    if subset == "subnetwork":  # its variances go among the zeros of all other weights
        var = torch.zeros_like(mean).index_copy(0, la.backend.subnetwork_indices.to(mean.device), var.to(mean))
    means, variances = (_split(flat, names, fitted, la) for flat in (mean, var))
    # A tensor without any entry in the subnetwork is deterministic as a whole.
    return {name: Moments(means[name], part) for name, part in variances.items() if bool((part != 0).any())}


def _diagonal_subset(la: Any) -> str:
    """``all``, ``last_layer`` or ``subnetwork``."""
    key = getattr(la, "_key", None)
    if not isinstance(key, tuple) or len(key) != 2:
        raise PosteriorError(f"a {type(la).__name__} is no Laplace approximation of laplace-torch")
    subset, structure = map(str, key)
    if structure != "diag" or subset not in ("all", "last_layer", "subnetwork"):
        raise PosteriorError(
            f"a {type(la).__name__} ({subset}, {structure}) has no variance of each weight on its own, and varprop "
            'propagates a diagonal Gaussian: fit Laplace(..., hessian_structure="diag")'
        )
    return subset


def _fitted(la: Any, subset: str) -> _Named:
    """The parameters in the order of the flat vectors, by their names in the model that was fitted."""
    if subset == "last_layer":  # of a copy of the model
        path = la.model._last_layer_name
        return [(f"{path}.{name}" if path else name, p) for name, p in la.model.last_layer.named_parameters()]
    names = {id(parameter): name for name, parameter in la.model.named_parameters()}
    return [(names.get(id(parameter), f"parameter {index}"), parameter) for index, parameter in enumerate(la.params)]


def _names(model: nn.Module, la: Any, fitted: _Named) -> list[str]:
    """What ``model`` calls the fitted parameters: by identity, or by name for a copy.

    The model may be a part of the fitted one, as when a wrapper around it was fitted because the library wants plain
    logits: then the path to it is left out.
    """
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    if all(id(parameter) in own for _, parameter in fitted):
        return [own[id(parameter)] for _, parameter in fitted]
    parameters = dict(fitted)
    while mismatches(parameters, model):
        if len({name.partition(".")[0] for name in parameters}) > 1 or not all("." in name for name in parameters):
            headline = f"{type(la).__name__} was fitted to parameters {type(model).__name__} lacks"
            problems = mismatches(dict(fitted), model)
            remedy = "Give the model that was fitted, or the one inside."
            raise PosteriorMismatchError(listing(headline, problems, remedy))
        parameters = {name.partition(".")[2]: p for name, p in parameters.items()}
    return list(parameters)


def _split(flat: Tensor, names: Sequence[str], fitted: _Named, la: Any) -> Tensors:
    sizes = [parameter.numel() for _, parameter in fitted]
    if flat.numel() != sum(sizes):
        raise PosteriorMismatchError(
            f"{type(la).__name__} has {flat.numel()} entries, the parameters it was fitted to have {sum(sizes)}: the "
            "model was changed after the fit"
        )
    shaped = (part.view(p.shape) for part, (_, p) in zip(flat.split(sizes), fitted, strict=True))
    return dict(zip(names, shaped, strict=True))
