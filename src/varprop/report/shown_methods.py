"""Which methods a table or figure shows: with all of them in each, nothing could be read."""

from __future__ import annotations

from collections.abc import Sequence

from varprop.evaluation.methods import ABLATIONS, method_of

_SIZES = (2, 4, 64)  # the usual two, and one that is as good as sampling gets
_VARIANTS = frozenset(ABLATIONS) - {"cvp", "streamlining"}


def without_variants(slugs: Sequence[str]) -> tuple[str, ...]:
    """For plots against time: all sizes of Monte Carlo, no variants of the ablation."""
    return tuple(slug for slug in slugs if slug not in _VARIANTS)


def main(slugs: Sequence[str]) -> tuple[str, ...]:
    """For the main table: a few sizes of Monte Carlo and no variants."""
    sizes = {method_of(slug).samples for slug in slugs} - {None}
    few = sizes & set(_SIZES) if len(sizes) > len(_SIZES) else sizes
    return tuple(slug for slug in without_variants(slugs) if method_of(slug).samples in few | {None})


def sampled(slugs: Sequence[str]) -> tuple[str, ...]:
    """For the table of sample sizes: Monte Carlo from few to many samples, the mean network and CVP beside it."""
    sizes = sorted((slug for slug in slugs if method_of(slug).samples), key=lambda slug: method_of(slug).samples or 0)
    return (*(s for s in slugs if s == "mean"), *sizes, *(s for s in slugs if s == "cvp")) if sizes else ()


def ablated(slugs: Sequence[str]) -> tuple[str, ...]:
    """For the ablation table, in its own order; nothing if there are no variants."""
    return tuple(slug for slug in ABLATIONS if slug in slugs) if _VARIANTS & set(slugs) else ()


def scaled(slugs: Sequence[str]) -> tuple[str, ...]:
    """For the figures of learned scales: those with one per layer, of the full methods."""
    return tuple(s for s in slugs if s in ("cvp", "streamlining-per-layer") or s not in ABLATIONS)


def reference(slugs: Sequence[str]) -> str:
    """The method that others are compared with: CVP, or the last one."""
    return "cvp" if "cvp" in slugs else slugs[-1]


def headline(slugs: Sequence[str]) -> tuple[str, ...]:
    """For a sentence: the reference, temperature scaling, and Monte Carlo with the most samples."""
    most = max((s for s in slugs if method_of(s).samples), key=lambda s: method_of(s).samples or 0, default="")
    others = (slug for slug in slugs if slug in ("temperature", most))
    return tuple(dict.fromkeys([reference(slugs), *others]))


def in_prose(slug: str) -> str:
    """What a method is called in a sentence."""
    return {"mean": "the plain network", "temperature": "temperature scaling"}.get(slug, method_of(slug).title)
