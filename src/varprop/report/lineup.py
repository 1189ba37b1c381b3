"""Which methods a table or figure shows: with all of them in each, nothing could be read."""

from __future__ import annotations

from collections.abc import Sequence

from varprop.report.paper import ablations
from varprop.report.style import samples_of

_SIZES = (2, 4, 64)  # the paper's two, and one that is as good as sampling gets
_PER_LAYER = "Streamlining + per layer"


def is_variant(method: str) -> bool:
    """Whether it is one of the ablation's methods that the main table does not have."""
    return method in ablations() and method not in ("CVP", "Streamlining")


def main(methods: Sequence[str]) -> tuple[str, ...]:
    """For the main table: a few sizes of Monte Carlo and no variants."""
    sizes = {samples_of(method) for method in methods} - {None}
    few = sizes & set(_SIZES) if len(sizes) > len(_SIZES) else sizes
    return tuple(m for m in methods if not is_variant(m) and (samples_of(m) is None or samples_of(m) in few))


def unvaried(methods: Sequence[str]) -> tuple[str, ...]:
    """For plots against time: all sizes of Monte Carlo, no variants."""
    return tuple(m for m in methods if not is_variant(m))


def sampled(methods: Sequence[str]) -> tuple[str, ...]:
    """For the table of sample sizes: Monte Carlo from few to many samples, the mean network and CVP beside it."""
    sizes = sorted((m for m in methods if samples_of(m) is not None), key=lambda m: samples_of(m) or 0)
    return (*(m for m in methods if m == "mean"), *sizes, *(m for m in methods if m == "CVP")) if sizes else ()


def ablated(methods: Sequence[str]) -> tuple[str, ...]:
    """For the ablation table, in the paper's order; nothing if there are no variants."""
    return tuple(m for m in ablations() if m in methods) if any(map(is_variant, methods)) else ()


def scaled(methods: Sequence[str]) -> tuple[str, ...]:
    """For the figures of learned scales: those with one per layer, of the full methods."""
    return tuple(m for m in methods if m == "CVP" or m == _PER_LAYER or m not in ablations())
