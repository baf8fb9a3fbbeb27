"""What the clouds' stores share: reads by ranges of one version, checked as they come."""

from __future__ import annotations

import abc
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark_checkpoint.errors import NotFound
from pyspark_checkpoint.store.base import (
    CHUNK_BYTES,
    ObjectInfo,
    ObjectStore,
    Stored,
    Version,
    check_conditions,
    check_key,
    check_range,
)
from pyspark_checkpoint.store.remote import Call

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


class PieceCheck(Protocol):
    """Adds up the pieces of an object, and knows what they must come to."""

    def add(self, piece: bytes) -> None:
        """Take the next piece."""

    def is_right(self) -> bool:
        """Whether the pieces so far are the whole object."""


@dataclass(frozen=True, slots=True)
class RangeFound:
    """A part of an object as it arrived, and what the answer said of the whole."""

    data: bytes
    total_bytes: int
    version: str
    check: PieceCheck | None
    """None if the service keeps no checksum of the whole object."""

    def take(self, piece: bytes, call: Call, *, is_last: bool) -> bytes:
        """Return the piece, after adding it up; the last one only if all of them are right."""
        if self.check is not None:
            self.check.add(piece)
            if is_last and not self.check.is_right():
                raise call.damaged("the bytes that arrived do not match the object's checksum")
        return piece


def range_header(start: int, end: int | None) -> str:
    """The header that asks for the bytes ``[start, end)``, which are some."""
    return f"bytes={start}-{'' if end is None else end - 1}"


def range_total(content_range: str, data: bytes, start: int, end: int | None, call: Call) -> int:
    """How many bytes the object has in all, by the header of an answer that is the range asked for."""
    match = _CONTENT_RANGE.fullmatch(content_range)
    first, last, total = map(int, match.groups()) if match else (-1, -1, -1)
    wanted = (total if end is None else min(end, total)) - start
    if first != start or not last + 1 - start == len(data) == wanted:
        raise call.unavailable("another range arrived than was asked for")
    return total


class RangeReader(abc.ABC):
    """Reads the objects of one bucket. Holds no state of its own."""

    @abc.abstractmethod
    def info(self, call: Call, name: str, key: str) -> ObjectInfo:
        """Ask for what is known of an object."""

    @abc.abstractmethod
    def find(
        self,
        call: Call,
        name: str,
        start: int | None = None,
        end: int | None = None,
        version: str | None = None,
        *,
        max_bytes: int | None = None,
    ) -> RangeFound | None:
        """Read a range that is not empty, or everything; None means that the object has no byte there."""

    def whole(self, call: Call, name: str, max_bytes: int | None = None) -> Stored:
        """Read an object by one request, and check it against the checksum that came with it, if any."""
        found = self.find(call, name, max_bytes=max_bytes)
        assert found is not None  # without a range no offset can be beyond the end
        return Stored(found.take(found.data, call, is_last=True), Version(found.version))

    def part(self, call: Call, name: str, key: str, start: int, end: int | None) -> bytes:
        """Read the bytes ``[start, end)``, cut at the object's end."""
        found = None if start == end else self.find(call, name, start, end)
        if found is not None:
            return found.data
        size_bytes = self.info(call, name, key).size_bytes
        if start > size_bytes:
            raise call.invalid(f"a range from {start} of {size_bytes} bytes")
        return b""

    def pinned(self, call: Call, name: str, start: int, end: int, version: str) -> bytes:
        """Read exactly a range, which is not empty, of exactly this version, else ``Conflict``."""
        replaced = replace(call, if_absent=False)
        try:
            found = self.find(replaced, name, start, end, version)
        except NotFound:
            raise replaced.lost_race() from None
        if found is None or found.version != version or len(found.data) != end - start:
            raise replaced.lost_race()
        return found.data

    def chunks(self, call: Call, name: str, key: str, chunk_bytes: int) -> Iterator[bytes]:
        """Yield a whole object by ranges of one version; its checksum is compared before the last one."""
        first = self.find(call, name, 0, chunk_bytes)
        if first is None:
            if self.info(call, name, key).size_bytes:
                raise call.unavailable("the object was replaced while it was read")
            return
        data = first.data
        for start in range(0, first.total_bytes, chunk_bytes):
            end = min(start + chunk_bytes, first.total_bytes)
            if start:
                data = self.pinned(call, name, start, end, first.version)
            yield first.take(data, call, is_last=end == first.total_bytes)


class RangedStore(ObjectStore):
    """A prefix of a bucket, whose reads are those of a ``RangeReader``."""

    def __init__(self, scheme: str, bucket: str, prefix: str, reader: RangeReader) -> None:
        self._where = f"{scheme}://{bucket}"
        self._below = f"{prefix}/" if prefix else ""
        self.url = f"{self._where}/{prefix}".rstrip("/")
        self._reader = reader

    def read(self, key: str, *, max_bytes: int | None = None) -> Stored:
        return self._reader.whole(self._call("read", key), self._name(key), max_bytes)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        begin, stop = check_range(start, end)
        call, name = self._call("get", key), self._name(key)
        if begin == 0 and stop is None:
            return self._reader.whole(call, name).data
        return self._reader.part(call, name, key, begin, stop)

    def stream(self, key: str, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        return self._reader.chunks(self._call("stream", key), self._name(key), key, chunk_bytes)

    def head(self, key: str) -> ObjectInfo:
        return self._reader.info(self._call("head", key), self._name(key), key)

    def _name(self, key: str) -> str:
        return self._below + check_key(key)

    def _call(self, verb: str, key: str | None = None, *, writes: bool = False) -> Call:
        return Call(self._where, verb, key, writes=writes)

    def _put_call(self, key: str, if_absent: bool, if_match: Version | None) -> Call:
        check_conditions(if_absent, if_match)
        return Call(
            self._where, "put", key, writes=True, if_absent=if_absent, if_match=if_match is not None
        )
