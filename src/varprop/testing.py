"""Check a rule against Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from varprop.errors import RuleError
from varprop.moments import Moments, is_random
from varprop.rules import CVP, Rule, RuleSet
from varprop.rules.structural import mean_args


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
    bias: float = 0.0,
    seed: int = 0,
) -> list[Check]:
    """Compare a rule with Monte Carlo, in float64; raise ``AssertionError`` where they differ.

    Each ``Moments`` among ``args`` (lists included) is drawn ``samples`` times from its Gaussian and put
    through ``op``. The rule must lie within 5 standard errors of the samples, plus ``bias``, the relative
    error its docstring admits: of the standard deviation for the mean, of the variance for the variance.
    Returns one ``Check`` for every random tensor of the result.
    """
    rules = RuleSet(rules) if isinstance(rules, Rule) else rules
    if op not in rules:
        raise RuleError(f"{rules} has no rule for {op}")
    kwargs = kwargs or {}
    args = _double(tuple(args))
    predicted = _leaves(rules[op](*args, **kwargs))
    generator = torch.Generator().manual_seed(seed)
    draws: list[list[Tensor]] = []
    for _ in range(samples):
        draws.append(_leaves(op(*_sample(args, generator), **kwargs)))
    plain = _leaves(op(*mean_args(args), **kwargs))
    checks = []
    for index, (prediction, reference) in enumerate(zip(predicted, plain, strict=True)):
        if not is_random(prediction):
            torch.testing.assert_close(prediction, reference, msg=f"{op}: an output without variance must be the op's own at the mean")
            continue
        checks.append(_compare(op, prediction, torch.stack([draw[index] for draw in draws]), bias))
    return checks


def _compare(op: Any, prediction: Moments, draws: Tensor, bias: float) -> Check:
    if prediction.mean.shape != draws.shape[1:] or prediction.var.shape != draws.shape[1:]:
        shapes = tuple(prediction.mean.shape), tuple(prediction.var.shape), tuple(draws.shape[1:])
        raise AssertionError(f"{op}: mean {shapes[0]} and var {shapes[1]} must have the op's shape {shapes[2]}")
    count = draws.shape[0]
    mean, var = draws.mean(0), draws.var(0)
    fourth = ((draws - mean) ** 4).mean(0)
    check = Check(
        prediction, Moments(mean, var), (var / count).sqrt(), ((fourth - var * var).clamp_min(0) / count).sqrt()
    )
    # Rounding noise of the sums themselves, for outputs that do not vary at all.
    noise = 1e-10 * (1 + mean.abs())
    _assert_within(op, "mean", prediction.mean, mean, 5 * check.mean_error + bias * var.sqrt() + noise)
    _assert_within(op, "variance", prediction.var, var, 5 * check.var_error + bias * var + noise * noise)
    return check


def _assert_within(op: Any, what: str, predicted: Tensor, sampled: Tensor, tolerance: Tensor) -> None:
    excess = ((predicted - sampled).abs() / tolerance).flatten()
    if excess.numel() and not bool((excess <= 1).all()):
        worst = int(excess.nan_to_num(nan=float("inf")).argmax())
        values = [float(t.flatten()[worst]) for t in (predicted, sampled, tolerance)]
        raise AssertionError(
            f"{op}: {what} {values[0]:.6g} predicted, {values[1]:.6g} sampled, which is {float(excess[worst]):.1f} times "
            f"the tolerance of {values[2]:.2g} (entry {worst} of {excess.numel()})"
        )


def _double(value: Any) -> Any:
    return _map(lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, value)


def _sample(value: Any, generator: torch.Generator) -> Any:
    if is_random(value):
        return value.mean + value.std * torch.randn(value.shape, generator=generator, dtype=value.mean.dtype)
    if isinstance(value, list | tuple):
        return type(value)(_sample(item, generator) for item in value)
    return value


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    if is_random(value):
        return Moments(*map(function, value))
    if isinstance(value, list | tuple):
        return type(value)(_map(function, item) for item in value)
    return function(value)


def _leaves(value: Any) -> list[Any]:
    if is_random(value) or isinstance(value, Tensor):
        return [value]
    return [leaf for item in value for leaf in _leaves(item) if leaf is not None] if isinstance(value, list | tuple) else []
