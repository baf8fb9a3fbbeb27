"""Spark's offset log, read by Python: for queries without the jar, where the location is a directory."""

from __future__ import annotations

import re
from pathlib import Path

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)


def read_offsets(checkpoint_location: str, batch_id: int) -> str:
    """The text of ``offsets/N``, empty if the location is not a directory that this process sees."""
    root = local_directory(checkpoint_location)
    if root is None:
        return ""
    try:
        return (root / "offsets" / str(batch_id)).read_text("utf-8")
    except OSError:
        # Another machine's disk: the epoch is then known by query id and number alone.
        return ""


def local_directory(location: str) -> Path | None:
    """The directory that a checkpoint location names, None if it is in some other file system.

    As Hadoop reads it, no letter of a path stands for another one: ``%20`` is no space, ``#`` no fragment.
    """
    match = _URL.fullmatch(location)
    if match is None:
        return Path(location)
    scheme, host, path = match.groups()
    return Path(path) if scheme.lower() == "file" and host in (None, "", "localhost") else None
