"""The steps of rules that cost time, each in one function: written out, or as a kernel."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from varprop.rules.ruleset import Rule, RuleSet

Apply = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A layer with its other arguments: of x, weight and bias."""


class Forms(NamedTuple):
    """How steps are computed."""

    spread: Callable[..., Tensor]
    contract: Callable[..., Tensor]
    normalize: Callable[..., Any]
    attend: Callable[..., Any]


def in_forms(rules: RuleSet, forms: Forms) -> RuleSet:
    """The same rules, with their steps computed by ``forms``."""
    found = [member for member in dict.fromkeys(rules.values()) if _takes_forms(member)]
    changed = [replace(member, function=functools.partial(member.function, forms=forms)) for member in found]
    return rules.replace(*changed, name=rules.name) if found else rules


@functools.cache
def _takes_forms(member: Rule) -> bool:
    return "forms" in inspect.signature(member.function).parameters
