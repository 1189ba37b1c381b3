"""Parameter names: which ones a pattern selects, and which ones a misspelt name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

from varprop.errors import PosteriorError, listing


def select(names: Iterable[str], patterns: Sequence[Any]) -> list[str]:
    """The names that at least one pattern selects. A pattern that selects none is a mistake, hence an error."""
    names = list(names)
    if not patterns:
        raise PosteriorError('restrict() takes one or several patterns, e.g. restrict("head", "blocks.1.*")')
    wrong = [pattern for pattern in patterns if not isinstance(pattern, str)]
    if wrong:
        raise PosteriorError(f"restrict() takes strings, not a {type(wrong[0]).__name__}: restrict(*patterns)")
    chosen = {pattern: [name for name in names if selects(pattern, name)] for pattern in patterns}
    idle = [pattern for pattern, found in chosen.items() if not found]
    if idle:
        paths = {path for name in names for path in accumulate(name.split("."), "{}.{}".format)}
        headline = f"no parameter among the {len(names)} of this posterior is selected by"
        remedy = "Patterns match whole path segments; * stays within one segment, ** spans any number."
        raise PosteriorError(listing(headline, [repr(p) + did_you_mean(p, paths) for p in idle], remedy))
    union = {name for found in chosen.values() for name in found}
    return [name for name in names if name in union]


def selects(pattern: str, name: str) -> bool:
    """Whether ``pattern`` matches ``name`` or a module above it, segment by segment."""
    return _matches(pattern.split("."), name.split("."))


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`` (did you mean …?)``, or nothing where no candidate is close."""
    candidates = sorted(candidates)
    # Wrappers add a prefix (module., _orig_mod.) that may be long against a short name: look for that first.
    close = [c for c in candidates if name.endswith(f".{c}") or c.endswith(f".{name}")]
    close = sorted(close, key=len, reverse=True)[:1] or difflib.get_close_matches(name, candidates, n=3)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def _matches(pattern: list[str], segments: list[str]) -> bool:
    if not pattern:
        return True  # what is left of the name lies below a path that matched
    head, rest = pattern[0], pattern[1:]
    if head == "**":
        return any(_matches(rest, segments[start:]) for start in range(len(segments) + 1))
    return bool(segments) and fnmatchcase(segments[0], head) and _matches(rest, segments[1:])
