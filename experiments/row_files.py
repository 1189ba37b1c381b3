"""Rows as lines of JSON in a file, which grows while they are made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read_rows(file: Path) -> list[dict[str, Any]]:
    """None of a file that is not there yet."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def add_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Each is written when it is there."""
    with file.open("a") as lines:
        for row in rows:
            lines.write(json.dumps(row) + "\n")
            lines.flush()
