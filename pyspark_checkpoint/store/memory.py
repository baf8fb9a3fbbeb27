"""A store in this process's memory, as strict as a real one. ``memory://name`` is shared by name.

It keeps the whole contract except durability: objects live as long as the process. Like a
directory, and unlike S3, it refuses ``a`` beside ``a/b``, so that what works here works anywhere.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import AlreadyExists, Conflict, Invalid, NotFound
from pyspark_checkpoint.store.base import (
    CHUNK_BYTES,
    Body,
    ObjectInfo,
    ObjectStore,
    Stored,
    Version,
    check_conditions,
    check_key,
    check_prefix,
    check_range,
)
from pyspark_checkpoint.store.body import body_bytes
from pyspark_checkpoint.store.remote import Call


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    version: Version
    modified_ms: int
    nonce: str | None


class _Bucket:
    """The objects of one name, with one lock that makes every condition exact."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, _Object] = {}
        self.children: dict[str, int] = {}
        self.puts = 0
        _BUCKETS.add(self)

    def insert(self, key: str, item: _Object) -> None:
        if key not in self.objects:
            if key in self.children or any(parent in self.objects for parent in _parents(key)):
                raise Invalid(f"key {key!r} and a key below it cannot exist at once", key=key)
            for parent in _parents(key):
                self.children[parent] = self.children.get(parent, 0) + 1
        self.objects[key] = item

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is None:
            return
        for parent in _parents(key):
            self.children[parent] -= 1
            if not self.children[parent]:
                del self.children[parent]


_BUCKETS: weakref.WeakSet[_Bucket] = weakref.WeakSet()
_BY_NAME: dict[str, _Bucket] = {}
_BY_NAME_LOCK = threading.Lock()


class MemoryStore(ObjectStore):
    """Objects in a dictionary. Without a name it is a store that nobody else can open."""

    def __init__(self, name: str | None = None, prefix: str = "", clock: Clock = SYSTEM_CLOCK) -> None:
        self.url = "/".join(part for part in (f"memory://{name or 'unnamed'}", prefix) if part)
        self._bucket = _Bucket() if name is None else _bucket(name)
        self._below = f"{prefix}/" if prefix else ""
        self._clock = clock

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,
    ) -> Version:
        check_key(key)
        check_conditions(if_absent, if_match)
        content = body_bytes(data)
        full, bucket = self._below + key, self._bucket
        with bucket.lock:
            current = bucket.objects.get(full)
            if if_absent and current is not None:
                raise AlreadyExists(f"key {key!r} exists", key=key)
            if if_match is not None and (current is None or current.version != if_match):
                raise Conflict(f"key {key!r} has another version than the expected one", key=key)
            bucket.puts += 1
            version = Version(f"{bucket.puts}")
            bucket.insert(full, _Object(content, version, self._clock.now_ms(), nonce))
        return version

    def read(self, key: str, *, max_bytes: int | None = None) -> Stored:
        found = self._find(key)
        if max_bytes is not None and len(found.data) > max_bytes:
            raise Call(self.url, "read", key).too_large(len(found.data), max_bytes)
        return Stored(found.data, found.version)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        begin, stop = check_range(start, end)
        data = self._find(key).data
        if begin > len(data):
            raise Invalid(f"range from {begin} of {len(data)} bytes", key=key)
        return data[begin:stop]

    def stream(self, key: str, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        data = self._find(key).data
        for start in range(0, len(data), chunk_bytes):
            yield data[start : start + chunk_bytes]

    def head(self, key: str) -> ObjectInfo:
        return _info(key, self._find(key), with_nonce=True)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        after = (start_after or "").encode()
        bucket, below = self._bucket, self._below
        with bucket.lock:
            found = {
                full[len(below) :]: item
                for full, item in bucket.objects.items()
                if full.startswith(below + prefix)
            }
        for key in sorted(found, key=str.encode):
            if key.encode() > after:
                yield _info(key, found[key], with_nonce=False)

    def delete(self, keys: Iterable[str]) -> None:
        checked = [check_key(key) for key in keys]
        with self._bucket.lock:
            for key in checked:
                self._bucket.remove(self._below + key)

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        return self.put(target_key, self._find(source_key).data, if_absent=if_absent)

    def _find(self, key: str) -> _Object:
        check_key(key)
        with self._bucket.lock:
            found = self._bucket.objects.get(self._below + key)
        if found is None:
            raise NotFound(f"no object {key!r}", key=key)
        return found


def _info(key: str, item: _Object, *, with_nonce: bool) -> ObjectInfo:
    nonce = item.nonce if with_nonce else None
    return ObjectInfo(key, len(item.data), item.version, item.modified_ms, nonce)


def _parents(key: str) -> Iterator[str]:
    at = key.find("/")
    while at != -1:
        yield key[:at]
        at = key.find("/", at + 1)


def _bucket(name: str) -> _Bucket:
    with _BY_NAME_LOCK:
        return _BY_NAME.setdefault(name, _Bucket())


def _renew_locks() -> None:
    """A lock that another thread held when the process was forked would never be released."""
    global _BY_NAME_LOCK  # noqa: PLW0603
    _BY_NAME_LOCK = threading.Lock()
    for bucket in _BUCKETS:
        bucket.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)
