"""Moving objects between two stores, each proved before it is stored. Memory is bounded.

An object is fetched into memory, or into a temporary file when it is large; every range that a
manifest names is checked, and a pack down to its last byte; only then is it put. So the target never
holds a wrong object, and one that it has, of the right size, is one that an earlier copy has proved.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from typing import IO

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import (
    AlreadyExists,
    FormatError,
    IntegrityError,
    NotFound,
    OutcomeUnknown,
    RefusedError,
    Unavailable,
)
from pyspark_checkpoint.format.pack import (
    FOOTER_BYTES,
    PACK_HEADER,
    PACK_SUFFIX,
    PACK_TARGET_BYTES,
    pack_tail_bytes,
    read_pack_index,
)
from pyspark_checkpoint.history.copy_plan import Place
from pyspark_checkpoint.store.base import ObjectStore

MEMORY_BYTES = 2 * PACK_TARGET_BYTES
"""Larger objects go through a temporary file."""
_ATTEMPTS = 4
_READ_BYTES = 1024 * 1024
_FIRST_DELAY_SECONDS = 0.2


def copy_object(
    source: ObjectStore, target: ObjectStore, path: str, places: Iterable[Place], clock: Clock
) -> int:
    """Copy one object, proved, and return its size. ``NotFound`` when the source has it no longer."""
    with tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES) as spool:
        size_bytes = _fetch(source, path, spool, clock)
        check_places(path, spool, size_bytes, places)
        _create(target, path, spool, size_bytes, clock)
    return size_bytes


def has_object(source: ObjectStore, target: ObjectStore, path: str) -> bool:
    """Whether the target has the object already, from a copy that did not finish."""
    try:
        there = target.head(path).size_bytes
    except NotFound:
        return False
    here = source.head(path).size_bytes
    if there != here:
        raise RefusedError(
            f"the target has another object at {path}: {there} bytes, not {here}",
            hint="somebody wrote to the target by hand; copy to an empty place",
        )
    return True


def create_record(target: ObjectStore, key: str, data: bytes, clock: Clock) -> bool:
    """Create a small record. False if the target has another one under this key; the same one is fine."""
    for attempt in range(_ATTEMPTS):
        try:
            target.put(key, data, if_absent=True, nonce=clock.nonce())
        except AlreadyExists:
            return target.get(key) == data
        except OutcomeUnknown:
            clock.sleep(_FIRST_DELAY_SECONDS * 2**attempt)
        else:
            return True
    raise OutcomeUnknown(f"the target did not answer {_ATTEMPTS} times", key=key)


def check_places(path: str, file: IO[bytes], size_bytes: int, places: Iterable[Place]) -> None:
    """Check every range of an object that a manifest names, and all of a pack."""
    for place in sorted(places):
        if place.offset + place.size_bytes > size_bytes:
            raise FormatError(f"{path} has {size_bytes} bytes, fewer than its manifest says")
        actual = _digest(file, place.offset, place.size_bytes)
        if actual != place.sha256:
            raise IntegrityError(f"{path}@{place.offset}", place.sha256, actual)
    if path.endswith(PACK_SUFFIX):
        _check_pack(path, file, size_bytes)


def _check_pack(path: str, file: IO[bytes], size_bytes: int) -> None:
    """Check what no manifest knows of a pack: header, index, and parts that nothing names any more."""
    head = _read(file, 0, len(PACK_HEADER))
    footer = _read(file, max(0, size_bytes - FOOTER_BYTES), FOOTER_BYTES)
    tail = _read(file, max(0, size_bytes - pack_tail_bytes(path, footer)), size_bytes)
    for entry in read_pack_index(path, head, tail, object_size_bytes=size_bytes):
        ref = entry.ref
        actual = _digest(file, ref.offset, ref.size_bytes)
        if actual != ref.sha256:
            raise IntegrityError(f"{path}@{ref.offset}", ref.sha256, actual)


def _read(file: IO[bytes], start: int, size_bytes: int) -> bytes:
    file.seek(start)
    return file.read(size_bytes)


def _digest(file: IO[bytes], offset: int, size_bytes: int) -> str:
    digest = hashlib.sha256()
    file.seek(offset)
    while size_bytes:
        piece = file.read(min(size_bytes, _READ_BYTES))
        digest.update(piece)
        size_bytes -= len(piece)
    return digest.hexdigest()


def _fetch(source: ObjectStore, path: str, spool: IO[bytes], clock: Clock) -> int:
    for attempt in range(_ATTEMPTS):
        spool.seek(0)
        spool.truncate()
        try:
            return sum(spool.write(chunk) for chunk in source.stream(path))
        except Unavailable:
            if attempt + 1 == _ATTEMPTS:
                raise
            clock.sleep(_FIRST_DELAY_SECONDS * 2**attempt)
    raise AssertionError("unreachable")


def _create(target: ObjectStore, path: str, spool: IO[bytes], size_bytes: int, clock: Clock) -> None:
    for attempt in range(_ATTEMPTS):
        spool.seek(0)
        try:
            target.put(path, spool, if_absent=True, nonce=clock.nonce())
            return
        except AlreadyExists:
            if target.head(path).size_bytes != size_bytes:
                raise RefusedError(f"the target has another object at {path}") from None
            return
        except OutcomeUnknown:
            clock.sleep(_FIRST_DELAY_SECONDS * 2**attempt)
    raise OutcomeUnknown(f"the target did not answer {_ATTEMPTS} times", key=path)
