"""What an optimizer keeps for each parameter of a model: matched by identity, by name, or by order and shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from varprop.errors import PosteriorError, PosteriorMismatchError, listing, shortened
from varprop.posterior.binding import without_prefix
from varprop.posterior.names import did_you_mean

_REMEDY = (
    "Pass the live optimizer (build it as for training, then load the state dict into it), or build the optimizer over "
    "model.named_parameters(), which saves the names."
)
Options = Mapping[str, Any]
_Shapes = list[list[torch.Size | None]]


class Group(NamedTuple):
    """A parameter group: its options, and by the model's names its parameters and the state of each."""

    options: Options
    parameters: dict[str, nn.Parameter]
    states: dict[str, Options]


def kind_of(source: Any) -> str:
    """What an optimizer or its state dict is called in messages."""
    return type(source).__name__ if hasattr(source, "param_groups") else "state dict"


def read_groups(model: nn.Module, source: Any, curvature: str, expected: Sequence[Sequence[str]] = ()) -> list[Group]:
    """``source`` is an optimizer or its state dict; ``curvature`` is an entry of the state with its parameter's shape.

    ``expected`` are the names in each group as the program that made the groups would choose them.
    """
    if hasattr(source, "param_groups"):
        groups, state, names = source.param_groups, source.state, _live_names(model, source.param_groups)
    else:
        groups, state = _saved(source)
        names = _saved_names(model, groups, state, curvature, expected)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found = []
    for group in groups:
        own = {names[key]: key for key in group["params"]}
        # .get, because the state of an optimizer is a defaultdict: looking must not create entries.
        states = {name: state.get(key, {}) for name, key in own.items()}
        found.append(Group(group, {name: parameters[name] for name in own}, states))
    _check_shapes(found, curvature)
    return found


def _check_shapes(groups: Sequence[Group], curvature: str) -> None:
    wrong = [
        f"{curvature!r} of {name!r} has shape {tuple(entry.shape)}, the parameter {tuple(group.parameters[name].shape)}"
        for group in groups
        for name, state in group.states.items()
        if isinstance(entry := state.get(curvature), Tensor) and entry.shape != group.parameters[name].shape
    ]
    if wrong:
        remedy = "Give the model that was trained, and a state that is whole on this process."
        raise PosteriorMismatchError(listing("this optimizer is of another model", shortened(wrong), remedy))


def _live_names(model: nn.Module, groups: Sequence[Options]) -> dict[Any, str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    own = [p for group in groups for p in group["params"]]
    foreign = [str(tuple(p.shape)) for p in own if id(p) not in names]
    if foreign:
        raise PosteriorMismatchError(
            f"{len(foreign)} of the optimizer's {len(own)} parameters are not in this {type(model).__name__}; their "
            f"shapes are {', '.join(foreign)}. Give the very module the optimizer trains, not a copy or a part of it; "
            "for a copy, pass optimizer.state_dict()."
        )
    return {p: names[id(p)] for p in own}


def _saved(saved: Any) -> tuple[Sequence[Options], Mapping[Any, Any]]:
    if not isinstance(saved, Mapping) or "param_groups" not in saved:
        content = f" with keys {', '.join(map(repr, list(saved)[:8]))}" if isinstance(saved, Mapping) else ""
        raise PosteriorError(
            f"a {type(saved).__name__}{content} is neither an optimizer nor its state dict (no param_groups). "
            'For a whole checkpoint pass the optimizer\'s part, e.g. checkpoint["optimizer"].'
        )
    groups = saved["param_groups"]
    if not all(isinstance(group, Mapping) and "params" in group for group in groups):
        raise PosteriorError('a param_group of the state dict has no "params": it is damaged or no state dict of torch')
    return groups, saved.get("state", {})


def _saved_names(
    model: nn.Module,
    groups: Sequence[Options],
    state: Mapping[Any, Any],
    curvature: str,
    expected: Sequence[Sequence[str]],
) -> dict[Any, str]:
    keys = [key for group in groups for key in group["params"]]
    # Names are saved if the optimizer was given named_parameters(); sharded checkpoints have them for keys.
    names = [name for group in groups for name in group.get("param_names", group["params"])]
    if len(names) == len(keys) and all(isinstance(name, str) for name in names):
        known = dict(model.named_parameters(remove_duplicate=False))
        names = [without_prefix(name, known) for name in names]
        if unknown := [f"{name!r}{did_you_mean(name, known)}" for name in names if name not in known]:
            headline = f"the state dict names parameters {type(model).__name__} lacks"
            raise PosteriorMismatchError(listing(headline, unknown))
        return dict(zip(keys, names, strict=True))
    entries = [[state.get(key, {}).get(curvature) for key in group["params"]] for group in groups]
    shapes = [[each.shape if isinstance(each, Tensor) else None for each in part] for part in entries]
    if [len(part) for part in expected] == [len(part) for part in shapes]:
        return dict(zip(keys, (name for part in expected for name in part), strict=True))
    return _names_by_order(model, keys, shapes)


def _names_by_order(model: nn.Module, keys: Sequence[Any], shapes: _Shapes) -> dict[Any, str]:
    """Each group holds its parameters in the order of the model. Groups are told apart if they share no shape."""
    every = dict(model.named_parameters())
    trainable = {name: parameter for name, parameter in every.items() if parameter.requires_grad}
    candidates = next((each for each in (every, trainable) if len(each) == len(keys)), None)
    if candidates is None:
        raise PosteriorMismatchError(
            f"the state dict holds {len(keys)} parameters, {type(model).__name__} has {len(every)}, {len(trainable)} "
            f"of them trainable, so it cannot be told which is which. {_REMEDY}"
        )
    if len(shapes) == 1:
        return dict(zip(keys, candidates, strict=True))
    headline = f"the state dict has {len(shapes)} groups without names, and the shapes of their curvatures"
    known = Counter(shape for part in shapes for shape in set(part))
    if None in known or max(known.values(), default=1) > 1:
        raise PosteriorMismatchError(
            f"{headline} do not tell which parameters of {type(model).__name__} are in which. {_REMEDY}"
        )
    flat = [shape for part in shapes for shape in part]
    if Counter(flat) != Counter(parameter.shape for parameter in candidates.values()):
        raise PosteriorMismatchError(f"{headline} are those of another model than {type(model).__name__}. {_REMEDY}")
    waiting = {shape: iter([key for key, own in zip(keys, flat, strict=True) if own == shape]) for shape in known}
    return {next(waiting[parameter.shape]): name for name, parameter in candidates.items()}
