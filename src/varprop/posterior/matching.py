"""Which parameter of a model each state of an optimizer belongs to: by identity, by name, by order and shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from varprop.errors import PosteriorError, PosteriorMismatchError, listing
from varprop.posterior.dealing import Outline, deal
from varprop.posterior.names import did_you_mean

NAMES_REMEDY = "Pass the live optimizer, or build the optimizer over model.named_parameters(), which saves the names."

Options = Mapping[str, Any]
Named = dict[Any, tuple[str, nn.Parameter]]
"""The model's parameters, with their names, by the keys an optimizer has for them."""


class Held(NamedTuple):
    """What an optimizer or its state dict holds."""

    groups: Sequence[Options]
    named: Named
    state: Mapping[Any, Any]
    kind: str
    """What it is called in messages."""

    def states(self, group: Options) -> dict[str, Mapping[str, Any]]:
        """By parameter name."""
        # .get, because the state of an optimizer is a defaultdict: looking must not create entries.
        return {self.named[key][0]: self.state.get(key, {}) for key in group["params"]}


def held(model: nn.Module, source: Any, shaped: str, expected: Sequence[Sequence[str]] = ()) -> Held:
    """``source`` is an optimizer or its state dict; ``shaped`` is an entry of the state with its parameter's shape.

    ``expected`` are the names in each group as the program that made the groups would choose them.
    """
    if hasattr(source, "param_groups"):
        return Held(source.param_groups, _live(model, source), source.state, type(source).__name__)
    groups, state = _saved(source)
    return Held(groups, _named(model, groups, state, shaped, expected), state, "state dict")


def _live(model: nn.Module, optimizer: Any) -> Named:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    own = [p for group in optimizer.param_groups for p in group["params"]]
    foreign = [str(tuple(p.shape)) for p in own if id(p) not in names]
    if foreign:
        raise PosteriorMismatchError(
            f"{len(foreign)} of the optimizer's {len(own)} parameters are not in this {type(model).__name__}; their "
            f"shapes are {', '.join(foreign)}. Give the very module the optimizer trains, not a copy or a part of it; "
            "for a copy, pass optimizer.state_dict()."
        )
    return {p: (names[id(p)], p) for p in own}


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


def _named(
    model: nn.Module,
    groups: Sequence[Options],
    state: Mapping[Any, Any],
    shaped: str,
    expected: Sequence[Sequence[str]],
) -> Named:
    keys = [key for group in groups for key in group["params"]]
    # Names are saved if the optimizer was given named_parameters(); sharded checkpoints have them for keys.
    names = [name for group in groups for name in group.get("param_names", group["params"])]
    if len(names) == len(keys) and all(isinstance(name, str) for name in names):
        return _by_name(model, dict(zip(keys, names, strict=True)))
    outlines = [_outline(group, state, shaped) for group in groups]
    if _fits(model, outlines, expected):
        return _by_name(model, dict(zip(keys, (name for part in expected for name in part), strict=True)))
    return _by_order(model, groups, outlines)


def _fits(model: nn.Module, outlines: Sequence[Outline], expected: Sequence[Sequence[str]]) -> bool:
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return [len(part) for part in expected] == [len(outline.shapes) for outline in outlines] and all(
        shape in (None, shapes[name])
        for part, outline in zip(expected, outlines, strict=True)
        for name, shape in zip(part, outline.shapes, strict=True)
    )


def _by_name(model: nn.Module, saved: Mapping[Any, str]) -> Named:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    unknown = [f"{name!r}{did_you_mean(name, parameters)}" for name in saved.values() if name not in parameters]
    if unknown:
        raise PosteriorMismatchError(listing(f"the state dict names parameters {type(model).__name__} lacks", unknown))
    return {key: (name, parameters[name]) for key, name in saved.items()}


def _by_order(model: nn.Module, groups: Sequence[Options], outlines: Sequence[Outline]) -> Named:
    """Parameters by position: each group holds its own in the order of the model."""
    keys = [key for group in groups for key in group["params"]]
    every = list(model.named_parameters())
    trainable = [(name, parameter) for name, parameter in every if parameter.requires_grad]
    for candidates in (every, trainable):
        if len(candidates) != len(keys):
            continue
        if len(groups) == 1:
            return dict(zip(sorted(keys), candidates, strict=True))
        dealt = deal([p for _, p in candidates], outlines)
        if isinstance(dealt, str):
            raise PosteriorMismatchError(
                f"the state dict has {len(groups)} groups without names, and the shapes of their curvatures fit the "
                f"parameters of {type(model).__name__} {dealt}. {NAMES_REMEDY}"
            )
        waiting = [iter(group["params"]) for group in groups]
        return {next(waiting[index]): candidate for index, candidate in zip(dealt, candidates, strict=True)}
    raise PosteriorMismatchError(
        f"the state dict holds {len(keys)} parameters, {type(model).__name__} has {len(every)}, {len(trainable)} of "
        f"them trainable, so it cannot be told which is which. {NAMES_REMEDY}"
    )


def _outline(group: Options, state: Mapping[Any, Any], shaped: str) -> Outline:
    """What a group without names says about the shapes of its parameters."""
    flat = group.get(shaped)
    found = [state.get(key, {}).get(shaped) for key in group["params"]]
    shapes = [entry.shape if isinstance(entry, Tensor) else None for entry in found]
    return Outline(shapes, flat.numel() if isinstance(flat, Tensor) else None)
