"""A store that counts what passes through it: requests, bytes, seconds and failures, by verb.

Put around a backend it counts attempts; put around a ``RetryingStore`` it counts calls.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.store.base import CHUNK_BYTES, Body, ObjectInfo, ObjectStore, Stored, Version

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VerbCount:
    """What one verb has cost. ``bytes_out`` went to the store, ``bytes_in`` came from it."""

    requests: int = 0
    failures: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    seconds: float = 0.0

    def __add__(self, other: VerbCount) -> VerbCount:
        return self._join(other, 1)

    def __sub__(self, other: VerbCount) -> VerbCount:
        return self._join(other, -1)

    def _join(self, other: VerbCount, sign: int) -> VerbCount:
        return VerbCount(
            self.requests + sign * other.requests,
            self.failures + sign * other.failures,
            self.bytes_out + sign * other.bytes_out,
            self.bytes_in + sign * other.bytes_in,
            self.seconds + sign * other.seconds,
        )


@dataclass(frozen=True, slots=True)
class MeterSnapshot:
    """The counts at one moment; the difference of two is what happened between them."""

    verbs: Mapping[str, VerbCount] = field(default_factory=dict)

    def __getitem__(self, verb: str) -> VerbCount:
        return self.verbs.get(verb, VerbCount())

    def __sub__(self, earlier: MeterSnapshot) -> MeterSnapshot:
        return MeterSnapshot(MappingProxyType({verb: self[verb] - earlier[verb] for verb in self.verbs}))

    @property
    def total(self) -> VerbCount:
        """All verbs together."""
        return sum(self.verbs.values(), VerbCount())


class MeteredStore(ObjectStore):
    """Passes every call on to ``store`` and counts it. Many threads may share it."""

    def __init__(self, store: ObjectStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self.url = store.url
        self.inner = store
        self._clock = clock
        self._lock = threading.Lock()
        self._verbs: dict[str, VerbCount] = {}

    def snapshot(self) -> MeterSnapshot:
        """Return the counts so far."""
        with self._lock:
            return MeterSnapshot(MappingProxyType(dict(self._verbs)))

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,
    ) -> Version:
        size_bytes = _size(data)
        with self._request("put") as tally:
            version = self.inner.put(key, data, if_absent=if_absent, if_match=if_match, nonce=nonce)
            tally.bytes_out = size_bytes
            return version

    def read(self, key: str, *, max_bytes: int | None = None) -> Stored:
        with self._request("read") as tally:
            stored = self.inner.read(key, max_bytes=max_bytes)
            tally.bytes_in = len(stored.data)
            return stored

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        with self._request("get") as tally:
            data = self.inner.get(key, start=start, end=end)
            tally.bytes_in = len(data)
            return data

    def stream(self, key: str, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        yield from self._counted("stream", self.inner.stream(key, chunk_bytes=chunk_bytes), len)

    def head(self, key: str) -> ObjectInfo:
        with self._request("head"):
            return self.inner.head(key)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        yield from self._counted("list", self.inner.list(prefix, start_after=start_after), lambda _: 0)

    def delete(self, keys: Iterable[str]) -> None:
        with self._request("delete"):
            self.inner.delete(keys)

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        with self._request("copy"):
            return self.inner.copy(source_key, target_key, if_absent=if_absent)

    @property
    def server(self) -> str:
        return self.inner.server

    def close(self) -> None:
        self.inner.close()

    def _counted(self, verb: str, items: Iterator[T], size: Callable[[T], int]) -> Iterator[T]:
        """Count one request, and only the time spent in the store, not in the reader of the items."""
        first = True
        while True:
            with self._request(verb, requests=int(first)) as tally:
                item = next(items, None)
                tally.bytes_in = 0 if item is None else size(item)
            first = False
            if item is None:
                return
            yield item

    @contextmanager
    def _request(self, verb: str, requests: int = 1) -> Iterator[_Tally]:
        tally = _Tally()
        failures = 1
        began = self._clock.monotonic_seconds()
        try:
            yield tally
            failures = 0
        finally:
            seconds = self._clock.monotonic_seconds() - began
            count = VerbCount(requests, failures, tally.bytes_out, tally.bytes_in, seconds)
            with self._lock:
                self._verbs[verb] = self._verbs.get(verb, VerbCount()) + count


@dataclass(slots=True)
class _Tally:
    bytes_out: int = 0
    bytes_in: int = 0


def _size(data: Body) -> int:
    """The bytes that a put sends; a file that cannot say is refused by the store itself."""
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).nbytes
    try:
        position = data.tell()
        size_bytes = data.seek(0, io.SEEK_END) - position
        data.seek(position)
    except (OSError, AttributeError, ValueError):
        return 0
    return size_bytes
