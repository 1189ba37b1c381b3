"""Check a rule against Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from varprop.errors import RuleError
from varprop.moments import Moments, is_random, mean_of
from varprop.rules import CVP, Rule, RuleSet
from varprop.rules.ruleset import op_name

CHUNK = 2**20
"""Random numbers drawn at a time."""


@dataclass(frozen=True)
class Check:
    """A rule's moments beside those of samples, and the sampling error of each."""

    predicted: Moments
    sampled: Moments
    mean_error: Tensor
    """Standard error of the sampled mean."""
    var_error: Tensor
    """Standard error of the sampled variance."""


def check_rule(
    op: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    rules: Rule | RuleSet = CVP,
    samples: int = 20_000,
    bias: float | tuple[float, float] = 0.0,
    seed: int = 0,
) -> list[Check]:
    """Compare a rule with Monte Carlo, in float64; raise ``AssertionError`` where they differ.

    Each ``Moments`` among the arguments is drawn ``samples`` times from its Gaussian and put through ``op``. The rule
    must lie within 5 standard errors of the samples, plus ``bias``, the relative error its docstring admits: of the
    standard deviation for the mean, of the variance for the variance, or a pair of these. Where the rule returns a
    plain tensor, it must be the op's own result at the mean. Returns one ``Check`` for every random result.

    Choose means within some 3 deviations of where the op bends: samples see nothing of what happens in a far tail.

    >>> import math, torch, varprop as vp
    >>> exp2 = torch.ops.aten.special_exp2.default
    >>> @vp.rule(exp2)
    ... def exp2_moments(x):
    ...     mean = torch.exp2(x.mean + 0.5 * math.log(2) * x.var)
    ...     return vp.Moments(mean, torch.expm1(math.log(2) ** 2 * x.var) * mean**2)
    >>> x = vp.Moments(mean=torch.linspace(-1, 1, 5), var=torch.full((5,), 0.1))
    >>> [check] = vp.testing.check_rule(exp2, [x], rules=exp2_moments)
    """
    call = _Call(op, tree_map(_double, tuple(args)), tree_map(_double, kwargs or {}))
    results = _results(RuleSet(rules) if isinstance(rules, Rule) else rules, call)
    random = [index for index, got in enumerate(results) if is_random(got)]
    sampled = _moments(_sample(call, random, samples, seed)) if random else []
    checks = [Check(results[index], *moments) for index, moments in zip(random, sampled, strict=True)]
    for check in checks:
        _assert_close(op, check, *(bias if isinstance(bias, tuple) else (bias, bias)))
    return checks


def _results(rules: RuleSet, call: _Call) -> list[Any]:
    """What the rule returns, of the form that the op's own results have."""
    name = op_name(call.op)
    if call.op not in rules:
        raise RuleError(f"{rules} has no rule for {name}")
    if not call.random():
        raise RuleError(f"{name}: no argument is a Moments, so there is nothing to check")
    result = rules[call.op](*call.args, **call.kwargs)
    if result is NotImplemented:
        raise RuleError(f"{name}: the rule declines these arguments")
    results, expected = _flat(result), _flat(call.run(mean_of))
    if len(results) != len(expected):
        raise AssertionError(f"{name}: the rule returns {len(results)} results, the op {len(expected)}")
    for got, reference in zip(results, expected, strict=True):
        _assert_form(call.op, got, reference)
    return results


# --- samples -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """An op and its arguments, some of them random."""

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, value: Callable[[Moments], Tensor]) -> Any:
        """The op's own result, with a value in the place of every random argument."""
        args, kwargs = tree_map_only(Moments, value, (self.args, self.kwargs), is_leaf=is_random)
        return self.op(*args, **kwargs)

    def random(self) -> list[Moments]:
        return [leaf for leaf in tree_leaves((self.args, self.kwargs), is_leaf=is_random) if is_random(leaf)]


def _sample(call: _Call, wanted: list[int], samples: int, seed: int) -> Iterator[list[Tensor]]:
    """Samples of the wanted results, stacked, a chunk at a time."""

    def one(*draws: Tensor) -> list[Tensor]:
        values = iter(draws)
        results = _flat(call.run(lambda _: next(values)))
        return [results[index] for index in wanted]

    def each(*draws: Tensor) -> list[Tensor]:
        columns = zip(*(one(*row) for row in zip(*draws, strict=True)), strict=True)
        return [torch.stack(column) for column in columns]

    sources, generator = call.random(), torch.Generator().manual_seed(seed)
    size = max(1, CHUNK // max(1, sum(source.mean.numel() for source in sources)))
    batched: Callable[..., list[Tensor]] = torch.vmap(one)
    for start in range(0, samples, size):
        draws = [source.sample(min(size, samples - start), generator) for source in sources]
        try:
            yield batched(*draws)
        except RuntimeError:  # vmap cannot batch this op; that the op itself runs has been seen at the mean
            batched = each
            yield batched(*draws)


def _moments(chunks: Iterator[list[Tensor]]) -> list[tuple[Moments, Tensor, Tensor]]:
    """Mean and variance of each result's samples, and the standard errors of the two."""
    count, centres, powers = 0, [], []
    for chunk in chunks:
        if not count:  # powers about a point near the mean do not cancel
            centres = [samples.double().mean(0) for samples in chunk]
            powers = [torch.zeros(4, *centre.shape, dtype=torch.float64) for centre in centres]
        count += len(chunk[0])
        for samples, centre, sums in zip(chunk, centres, powers, strict=True):
            deviation = samples.double() - centre
            square = deviation * deviation
            sums += torch.stack([p.sum(0) for p in (deviation, square, square * deviation, square * square)])
    results = []
    for centre, sums in zip(centres, powers, strict=True):
        shift, second, third, fourth = sums / count
        var = (second - shift * shift).clamp_min(0)
        spread = fourth - 4 * shift * third + 6 * shift**2 * second - 3 * shift**4 - var * var
        moments = Moments(centre + shift, var * count / (count - 1))
        results.append((moments, (var / count).sqrt(), (spread.clamp_min(0) / count).sqrt()))
    return results


# --- comparison ----------------------------------------------------------------------------------


def _assert_form(op: Any, got: Any, reference: Any) -> None:
    """Shapes of a random result, values of one without variance; ``None`` stands for a result nobody uses."""
    if is_random(got):
        mean, var, shape = (tuple(part.shape) for part in (got.mean, got.var, reference))
        if not mean == var == shape:
            raise AssertionError(
                f"{op_name(op)}: mean {mean} and variance {var} must have the shape {shape} of the op's result"
            )
    elif got is not None:
        heading = f"{op_name(op)}: a result without variance must be the op's own at the mean"
        torch.testing.assert_close(got, reference, equal_nan=True, msg=lambda text: f"{heading}\n{text}")


def _assert_close(op: Any, check: Check, mean_bias: float, var_bias: float) -> None:
    predicted, sampled = check.predicted, check.sampled
    # What rounding does to numbers as large as the largest entry: all by which an entry without variance may differ.
    scale = (sampled.mean.abs() + sampled.std).max() if sampled.mean.numel() else 0.0
    rounding = 1e3 * torch.finfo(predicted.mean.dtype).eps * scale
    tolerance = 5 * check.mean_error + mean_bias * sampled.std + rounding
    _assert_within(f"{op_name(op)}: mean", predicted.mean, sampled.mean, tolerance, mean_bias)
    tolerance = 5 * check.var_error + var_bias * sampled.var + rounding**2
    _assert_within(f"{op_name(op)}: variance", predicted.var, sampled.var, tolerance, var_bias)


def _assert_within(what: str, predicted: Tensor, sampled: Tensor, tolerance: Tensor, bias: float) -> None:
    distance = (predicted - sampled).abs()
    off = torch.where(distance <= tolerance, 0.0, distance / tolerance).nan_to_num(nan=torch.inf)
    if not bool(off.any()):
        return
    worst = int(off.argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), off.shape))
    got, expected, allowed, excess = (float(part.flatten()[worst]) for part in (predicted, sampled, tolerance, off))
    raise AssertionError(
        f"{what} is {got:.6g} at {place}, but {expected:.6g} ± {allowed:.2g} in samples (5 standard errors"
        f"{f' and a bias of {bias:g}' if bias else ''}): {excess:.1f} times the tolerance; "
        f"{int(off.count_nonzero())} of {off.numel()} entries are off"
    )


# --- arguments -----------------------------------------------------------------------------------


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) and not is_random(result) else [result]
