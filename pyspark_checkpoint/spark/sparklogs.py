"""Spark's offset log, read by Python: for queries without the jar, where the location is a directory."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse


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
    """The directory that a checkpoint location names, None if it is in some other file system."""
    parsed = urlparse(location)
    if parsed.scheme == "file" and parsed.netloc in ("", "localhost"):
        return Path(unquote(parsed.path))
    return Path(location) if not parsed.scheme else None
