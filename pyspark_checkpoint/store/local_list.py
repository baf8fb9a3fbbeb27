"""Listing a directory tree in the order of its keys' UTF-8 bytes, one directory at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pyspark_checkpoint.errors import Invalid
from pyspark_checkpoint.store.base import check_key
from pyspark_checkpoint.store.local_files import RESERVED

_LOST_AND_FOUND = "lost+found"
"""What the root of a file system has, as a rule for root alone. No object is there."""


def walk_keys(root: str, prefix: str, start_after: str | None) -> Iterator[tuple[str, os.stat_result]]:
    """Yield key and status of every object below ``root`` that begins with ``prefix``, in order.

    A directory sorts as its name with a slash, so that ``a-b`` comes before ``a/b`` and that before
    ``a0``: with that, the order within each directory is the order of the whole keys. Directories
    outside the prefix, or wholly at or before ``start_after``, are not entered.
    """
    after = (start_after or "").encode()
    below = prefix.rpartition("/")[0]
    if RESERVED in below.split("/"):
        return
    yield from _walk(os.path.join(root, below), f"{below}/" if below else "", prefix, after)  # noqa: PTH118


def _walk(directory: str, below: str, prefix: str, after: bytes) -> Iterator[tuple[str, os.stat_result]]:
    for is_directory, entry in _entries(directory):
        key = below + entry.name
        if is_directory:
            inside = f"{key}/"
            if _may_hold(inside, prefix) and not _wholly_before(inside.encode(), after):
                yield from _walk(entry.path, inside, prefix, after)
        elif key.startswith(prefix) and key.encode() > after:
            try:
                yield key, entry.stat()
            except FileNotFoundError:
                continue  # deleted since


def _entries(directory: str) -> list[tuple[bool, os.DirEntry[str]]]:
    try:
        with os.scandir(directory) as scan:
            found = [(entry.is_dir(), entry) for entry in scan if _is_ours(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        if os.path.basename(directory) != _LOST_AND_FOUND:  # noqa: PTH119 - as fast as a listing can be
            raise
        return []
    return sorted(found, key=lambda item: item[1].name.encode() + (b"/" if item[0] else b""))


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Leave out unfinished files, devices, and names that no key can have."""
    try:
        check_key(entry.name)
    except Invalid:
        return False
    return entry.name != RESERVED and (entry.is_dir() or entry.is_file())


def _may_hold(inside: str, prefix: str) -> bool:
    return inside.startswith(prefix) or prefix.startswith(inside)


def _wholly_before(inside: bytes, after: bytes) -> bool:
    return inside < after and not after.startswith(inside)
