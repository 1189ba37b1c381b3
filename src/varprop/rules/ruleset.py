"""Rules and rule sets: immutable values that say how each op acts on moments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from varprop.errors import RuleError

Op = Callable[..., Any]

Approximation = str | Callable[..., str | None] | None
"""What a rule neglects; ``None`` if it is exact. A function decides for the arguments of a call."""

UNSTATED = "the rule does not say how exact it is"


@dataclass(frozen=True)
class Rule:
    """How one or several ops act on moments.

    ``function`` has the op's own signature; each tensor argument may be a ``Moments`` or a plain,
    deterministic tensor, and at least one is a ``Moments``. It returns ``Moments``, or a plain
    tensor where the op's result carries no variance.
    """

    ops: tuple[Op, ...]
    function: Callable[..., Any]
    approximation: Approximation = UNSTATED
    """What is neglected for independent Gaussian arguments, ``None`` if nothing is: see ``neglects``."""
    mixes: bool = False
    """Does each entry of the result combine several entries of one argument, as sums and matrix products do?"""
    scaled: bool = False
    """Does a calibration scale sit on the variance of the op's first argument?"""
    factored: bool = False
    """Does it take factored variances as they are? Others get them multiplied out."""
    takes_complex: bool = False
    """Does it know complex moments? Their variance is that of the real part, plus i times that of the imaginary one."""
    gradient: Callable[..., Any] | None = None
    """Of a function of single entries, where autograd would take many more steps: given ``x``, the gradients of the
    results, as moments, and the other arguments, those of ``x``; or ``NotImplemented``.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def neglects(self, *args: Any, **kwargs: Any) -> str | None:
        """What the rule neglects in this call; ``None`` if it is exact."""
        return self.approximation(*args, **kwargs) if callable(self.approximation) else self.approximation

    @property
    def name(self) -> str:
        return inspect.unwrap(_plain(self.function)).__name__


def rule(
    *ops: Op,
    approximation: Approximation = UNSTATED,
    mixes: bool = False,
    scaled: bool = False,
    factored: bool = False,
    takes_complex: bool = False,
    gradient: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Rule]:
    """Make a function the rule of one or several ops: ``@rule(aten.relu.default, approximation=None)``.

    Nothing is registered anywhere: add the result to a rule set with ``CVP | my_rule``. See ``Rule`` for the options.
    """
    if not ops or not all(callable(op) for op in ops):
        raise RuleError("rule() takes the ops it is for, e.g. @rule(torch.ops.aten.relu.default)")
    return lambda function: Rule(ops, function, approximation, mixes, scaled, factored, takes_complex, gradient)


def rule_for_each(*ops: Op, **options: Any) -> Callable[[Callable[..., Any]], RuleSet]:
    """Make a function the rule of several ops that differ in nothing else: it is given the op first."""
    return lambda function: RuleSet(*(rule(op, **options)(functools.partial(function, op)) for op in ops))


class RuleSet(Mapping[Op, Rule]):
    """An immutable map from ops to rules. ``|`` adds and refuses a clash; ``replace`` overrides.

    Sets with the same rules are equal and have the same hash, whatever their names.
    """

    def __init__(self, *members: Rule | RuleSet, name: str = "") -> None:
        self.name = name
        self._rules: dict[Op, Rule] = {}
        for op, member in _flatten(members):
            if op in self._rules:
                raise RuleError(f"{op_name(op)} already has a rule, {self._rules[op].name}: override it with replace()")
            self._rules[op] = member

    def __getitem__(self, op: Op) -> Rule:
        return self._rules[op]

    def __iter__(self) -> Iterator[Op]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __hash__(self) -> int:
        return hash(frozenset(self._rules.items()))

    def __repr__(self) -> str:
        return f"<RuleSet {self.name or 'unnamed'}: {len(self)} ops>"

    def __or__(self, other: Rule | RuleSet) -> RuleSet:
        return RuleSet(self, other, name=self.name)

    def replace(self, *members: Rule | RuleSet, name: str = "") -> RuleSet:
        """A new set in which ``members`` take the place of this set's rules for the same ops."""
        changed = RuleSet(*members)
        unknown = [op_name(op) for op in changed if op not in self]
        if unknown:
            raise RuleError(f"nothing to replace for {', '.join(unknown)}: add it with |")
        result = RuleSet(name=name or f"{self.name} (changed)")
        result._rules = self._rules | changed._rules
        return result


def op_name(op: Any) -> str:
    """``aten.relu.default``, or the plain name of a function that ATen has no op for."""
    return getattr(op, "__name__", str(op)) if inspect.isfunction(op) else str(op)


def _flatten(members: tuple[Rule | RuleSet, ...]) -> Iterator[tuple[Op, Rule]]:
    for member in members:
        if isinstance(member, RuleSet):
            yield from member.items()
        elif isinstance(member, Rule):
            yield from ((op, member) for op in member.ops)
        else:
            raise RuleError(
                f"a rule set is made of rules and rule sets, not {type(member).__name__}: decorate it with @rule(op)"
            )


class Backend(NamedTuple):
    """How the costly steps of rules are computed: by ops of torch or by kernels."""

    spread: Callable[..., Tensor]
    contract: Callable[..., Tensor]
    normalize: Callable[..., Any]
    attend: Callable[..., Any]


def with_backend(rules: RuleSet, backend: Backend) -> RuleSet:
    """The same rules; those that take a ``backend`` are given this one."""
    found = [member for member in dict.fromkeys(rules.values()) if _takes_backend(member)]
    changed = [replace(member, function=functools.partial(member.function, backend=backend)) for member in found]
    return rules.replace(*changed, name=rules.name) if found else rules


@functools.cache
def _takes_backend(member: Rule) -> bool:
    return "backend" in inspect.signature(member.function).parameters


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function
