"""Whole files, compressed or not; compressed ones are read to their end, where their checksums are."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path

from varprop.errors import DataError


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def gunzip(path: Path) -> bytes:
    try:
        return gzip.decompress(content(path))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file: {error}; download it again") from None


def members(path: Path, wanted: Collection[str], optional: Collection[str] = ()) -> dict[str, bytes]:
    """Files of a .tar.gz by their names without folders."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = Path(member.name).name
                if member.isfile() and (name in wanted or name in optional):
                    file = archive.extractfile(member)
                    found[name] = file.read() if file is not None else b""
            while stream.read(1 << 20):  # the checksum is behind the end of the archive
                pass
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole archive: {error}; download it again") from None
    missing = [name for name in wanted if name not in found]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}")
    return found
