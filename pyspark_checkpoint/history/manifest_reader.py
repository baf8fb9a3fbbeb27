"""Manifests and small records of a store: absent, damaged and unreachable are three different answers.

Absent is ``None`` and is said only when the store has proven it (``NotFound``). Damaged is a
``FormatError`` that names the object. Every other failure of the store leaves here as it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import AlreadyExists, FormatError, NotFound, OutcomeUnknown, TooLarge
from pyspark_checkpoint.format.envelope import (
    MAX_RECORD_BYTES,
    MAX_SEALED_BYTES,
    Mac,
    sha256_hex,
    too_many_bytes,
)
from pyspark_checkpoint.format.keys import manifest_key, parse_manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_codec import decode_manifest
from pyspark_checkpoint.store.base import Body, ObjectStore, Stored
from pyspark_checkpoint.store.body import rewind_body

_CREATE_ATTEMPTS = 10
_FIRST_DELAY_SECONDS = 0.01
_MAX_DELAY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class LoadedManifest:
    """A manifest, the bytes that it was read from, and their digest."""

    manifest: CheckpointManifest
    sha256: str
    data: bytes = field(repr=False)

    @property
    def number(self) -> int:
        """The checkpoint's number."""
        return self.manifest.checkpoint_id

    @property
    def chain_sha256(self) -> str:
        """The digest that the next manifest must name; a tombstone answers for what it replaced."""
        return self.manifest.deleted_sha256 or self.sha256


def exists(store: ObjectStore, key: str) -> bool:
    """Whether the store has ``key``. A store that does not answer is an error, not False."""
    try:
        store.head(key)
    except NotFound:
        return False
    return True


def missing_object(path: str) -> FormatError:
    """The error for an object that a checkpoint names and the store lacks."""
    return FormatError(f"{path} is missing, though a checkpoint names it")


def max_bytes_of(key: str) -> int:
    """How many bytes the object of this name can have at most."""
    return MAX_RECORD_BYTES if parse_manifest_key(key) is None else MAX_SEALED_BYTES


def read_record(store: ObjectStore, key: str) -> bytes:
    """The bytes of a manifest or small record, or ``NotFound``.

    Reads no more than such an object can have and one byte, by which decoding knows one that is too large.
    """
    return store.get(key, start=0, end=max_bytes_of(key) + 1)


def find_record(store: ObjectStore, key: str) -> bytes | None:
    """The same, None if it is absent."""
    try:
        return read_record(store, key)
    except NotFound:
        return None


def read_stored(store: ObjectStore, key: str) -> Stored:
    """A manifest or small record with its version, or ``NotFound``. A huge one is damage, and not read."""
    limit = max_bytes_of(key)
    try:
        return store.read(key, max_bytes=limit)
    except TooLarge:
        raise too_many_bytes(key, limit) from None


def load_manifest_bytes(data: bytes, number: int, *, mac: Mac | None = None) -> LoadedManifest:
    """Decode manifest ``number``; one that lies under another's name is damaged."""
    key = manifest_key(number)
    manifest = decode_manifest(data, key, mac=mac)
    if manifest.checkpoint_id != number:
        raise FormatError(f"{key} is the manifest of checkpoint {manifest.checkpoint_id}")
    return LoadedManifest(manifest, sha256_hex(data), data)


def find_manifest(store: ObjectStore, number: int, *, mac: Mac | None = None) -> LoadedManifest | None:
    """Manifest ``number``, None if it is absent. Says nothing about floor and pins."""
    data = find_record(store, manifest_key(number))
    return None if data is None else load_manifest_bytes(data, number, mac=mac)


def create_object(store: ObjectStore, key: str, data: Body, clock: Clock) -> bool:
    """Create an object; False if there is one under this key, ours or another's.

    An answer that was lost is asked for again, with the same nonce. ``OutcomeUnknown`` if the store has
    not answered ten times: then the object may be there, now or later.
    """
    nonce, delay = clock.nonce(), _FIRST_DELAY_SECONDS
    for left in reversed(range(_CREATE_ATTEMPTS)):
        rewind_body(data, 0)
        try:
            store.put(key, data, if_absent=True, nonce=nonce)
            return True
        except AlreadyExists:
            return False
        except OutcomeUnknown:
            if not left:
                raise
        clock.sleep(delay)
        delay = min(2 * delay, _MAX_DELAY_SECONDS)
    raise AssertionError("unreachable")
