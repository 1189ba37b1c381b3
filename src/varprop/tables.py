"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> list[str]:
    """Lines with columns aligned: to the right those whose index is in ``numbers``, else to the left."""
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return ["  ".join(_cell(text, widths[i], i in numbers) for i, text in enumerate(line)).rstrip() for line in lines]


def _cell(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)
