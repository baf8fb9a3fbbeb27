"""Manifests read from a store: absent, damaged and unreachable are three different answers.

Absent is ``None`` and is said only when the store has proven it (``NotFound``). Damaged is a
``FormatError`` that names the object. Every other failure of the store leaves here as it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark_checkpoint.errors import FormatError, NotFound
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_json import decode_manifest
from pyspark_checkpoint.format.sealed import MAX_SEALED_BYTES, Mac, sha256_hex
from pyspark_checkpoint.store.base import ObjectStore


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


def exists(store: ObjectStore, key: str) -> bool:
    """Whether the store has ``key``. A store that does not answer is an error, not False."""
    try:
        store.head(key)
    except NotFound:
        return False
    return True


def find_record(store: ObjectStore, key: str) -> bytes | None:
    """The bytes of a small record, None if it is absent. Reads no more than a record can have."""
    try:
        return store.get(key, start=0, end=MAX_SEALED_BYTES + 1)
    except NotFound:
        return None


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


def read_manifest(store: ObjectStore, number: int, *, mac: Mac | None = None) -> LoadedManifest:
    """Manifest ``number``, or ``NotFound``. Says nothing about floor and pins."""
    found = find_manifest(store, number, mac=mac)
    if found is None:
        raise NotFound(f"no manifest {number}", key=manifest_key(number))
    return found
