"""SHA-256 sums, where somebody put them beside the data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from experiments.data.archives import content
from varprop.errors import DataError

SUMS = ("SHA256SUMS", "checksums.sha256")
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")  # as sha256sum writes it


def verify(folder: Path, files: Iterable[str]) -> None:
    """Refuse the files whose sums are listed in the folder and differ; without a list nothing is read."""
    sums = {file: (digest, name) for name in SUMS for file, digest in _listed(folder / name).items()}
    if not sums:
        return
    wrong = [
        file for file in files if file in sums and hashlib.sha256(content(folder / file)).hexdigest() != sums[file][0]
    ]
    if wrong:
        named = ", ".join(str(folder / file) for file in wrong)
        raise DataError(f"{named}: not what {sums[wrong[0]][1]} beside it lists (SHA-256); copy or download it again")


def _listed(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    found = {}
    for number, line in enumerate(content(path).decode("utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise DataError(f"line {number} of {path} is not a SHA-256 sum and a file name; mend or remove that file")
        found[match[2]] = match[1].lower()
    return found
