"""Which group of an optimizer holds which parameter, told from shapes where a state dict has no names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MOST_STATES = 50_000
"""Of the search, at one parameter: beyond, the groups count as ambiguous."""

State = tuple[tuple[int, int], ...]  # for each group: parameters dealt so far, and their entries


class Outline(NamedTuple):
    """What is known of a group: the shape of each of its parameters or None, and the entries of all or None."""

    shapes: list[torch.Size | None]
    entries: int | None


def deal(parameters: Sequence[Tensor], groups: Sequence[Outline]) -> list[int] | str:
    """The group of each parameter if there is but one way that fits, with each group in the order of the model.

    Otherwise how they fit: ``in no way``, ``in more than one way``.
    """
    start: State = tuple((0, 0) for _ in groups)
    layers: list[dict[State, tuple[bool, State, int]]] = []  # is the way here the only one, its last state and group
    unique = {start: True}
    for parameter in parameters:
        layer: dict[State, tuple[bool, State, int]] = {}
        for state, only in unique.items():
            for index, group in enumerate(groups):
                if (reached := _step(state, index, group, parameter)) is not None:
                    layer[reached] = (only and reached not in layer, state, index)
        if len(layer) > MOST_STATES:
            return "in more than one way, as far as can be told"
        layers.append(layer)
        unique = {state: only for state, (only, _, _) in layer.items()}
    ends = [s for s in unique if all(g.entries in (None, size) for g, (_, size) in zip(groups, s, strict=True))]
    if not ends:
        return "in no way: they are of another model, or in another order"
    if len(ends) > 1 or not unique[ends[0]]:
        return "in more than one way"
    dealt, state = [], ends[0]
    for layer in reversed(layers):
        _, state, index = layer[state]
        dealt.append(index)
    return dealt[::-1]


def _step(state: State, index: int, group: Outline, parameter: Tensor) -> State | None:
    """The state after the parameter went to this group; None if it cannot be there."""
    count, size = state[index]
    if count == len(group.shapes) or group.shapes[count] not in (None, parameter.shape):
        return None
    # Sums matter, and are kept, only where the group is known by its sum.
    size = 0 if group.entries is None else size + parameter.numel()
    if group.entries is not None and size > group.entries:
        return None
    return (*state[:index], (count + 1, size), *state[index + 1 :])
