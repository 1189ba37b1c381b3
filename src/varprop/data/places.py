"""Where data sets are looked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from varprop.errors import DataError

VARIABLE = "VARPROP_DATA"
"""Environment variable: a folder that holds a folder for each data set."""


def find(name: str, folder: str | os.PathLike[str] | None, wanted: Sequence[Sequence[str]], remedy: str) -> Path:
    """The first folder with all files of one of the ``wanted`` lists; the error says where they were looked for."""
    if folder is not None:
        places = [Path(folder)]
    else:
        roots = [Path(os.environ[VARIABLE])] if VARIABLE in os.environ else []
        roots += [Path("data"), Path("/usr/share/datasets")]
        places = [root / name for root in roots]
    for place in places:
        if any(all((place / file).is_file() for file in files) for files in wanted):
            return place
    listed = ", ".join(str(place) for place in places)
    raise DataError(f"{name} is not in {listed}; {remedy}, and give its folder, or set {VARIABLE} to the one above it")
