"""A store that counts what passes through it: requests, bytes, seconds and failures, by verb.

Put around a backend it counts attempts; put around a ``RetryingStore`` it counts calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import Invalid
from pyspark_checkpoint.store.base import Body, ObjectStore, Stored, Version, WrappedStore
from pyspark_checkpoint.store.body import UploadBody

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


class MeteredStore(WrappedStore):
    """Passes every call on to ``store`` and counts it. Many threads may share it."""

    def __init__(self, store: ObjectStore, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(store)
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

        def put() -> Version:
            return self.inner.put(key, data, if_absent=if_absent, if_match=if_match, nonce=nonce)

        return self._call("put", key, put, bytes_out=size_bytes)

    def _items(self, verb: str, key: str, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Count one request, and only the time spent in the store, not in the reader of the items."""
        items, requests = begin(), 1
        while (item := self._call(verb, key, lambda: next(items, None), requests=requests)) is not None:
            yield item
            requests = 0

    def _call(
        self,
        verb: str,
        key: str,  # noqa: ARG002
        effect: Callable[[], T],
        *,
        requests: int = 1,
        bytes_out: int = 0,
    ) -> T:
        began = self._clock.monotonic_seconds()
        count = VerbCount(requests, failures=1)
        try:
            result = effect()
            count = VerbCount(requests, 0, bytes_out, _bytes_in(result))
            return result
        finally:
            count = replace(count, seconds=self._clock.monotonic_seconds() - began)
            with self._lock:
                self._verbs[verb] = self._verbs.get(verb, VerbCount()) + count


def _bytes_in(result: object) -> int:
    data = result.data if isinstance(result, Stored) else result
    return len(data) if isinstance(data, bytes) else 0


def _size(data: Body) -> int:
    """The bytes that a put sends; a body that cannot say is refused by the store itself."""
    try:
        return UploadBody(data).size_bytes
    except Invalid:
        return 0
