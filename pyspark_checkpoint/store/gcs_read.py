"""Downloads from Google Cloud Storage: whole, by range, and as a stream of ranges of one generation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark_checkpoint.errors import NotFound
from pyspark_checkpoint.store.base import ObjectInfo, Stored, Version
from pyspark_checkpoint.store.call import Call
from pyspark_checkpoint.store.gcs_api import GcsApi, read_body
from pyspark_checkpoint.store.gcs_checksum import checker_for

NONCE_FIELD = "ckpt-nonce"
_INFO_FIELDS = "name,size,generation,updated,metadata"
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class _Range:
    """A part of an object as it arrived, and what the answer said of the whole."""

    data: bytes
    total_bytes: int
    headers: Mapping[str, str]

    @property
    def generation(self) -> str:
        return self.headers.get("x-goog-generation", "")


class GcsReader:
    """Reads the objects of one bucket. Holds no state of its own."""

    def __init__(self, api: GcsApi) -> None:
        self._api = api

    def info(self, call: Call, name: str, key: str) -> ObjectInfo:
        """Ask for an object's metadata."""
        with self._api.send(
            call, "GET", self._api.object_path(name), params={"fields": _INFO_FIELDS}
        ) as response:
            return parse_info(load_json(read_body(response), call), key, call)

    def whole(self, call: Call, name: str, max_bytes: int | None = None) -> Stored:
        """Read an object by one request, and check it against the checksum that came with it."""
        with self._api.send(call, "GET", self._api.object_path(name), params={"alt": "media"}) as response:
            headers = _lower(response.headers)
            size_bytes = int(headers.get("content-length") or 0)
            if max_bytes is not None and size_bytes > max_bytes:
                raise call.too_large(size_bytes, max_bytes)
            data = read_body(response)
        expected = checker_for(headers)
        if expected is not None:
            checker, value = expected
            checker.add(data)
            if checker.result().value != value:
                raise call.damaged("the bytes that arrived do not match the object's checksum")
        generation = headers.get("x-goog-generation", "")
        if not generation:
            raise call.unavailable("the answer has no generation")
        return Stored(data, Version(generation))

    def part(self, call: Call, name: str, key: str, start: int, end: int | None) -> bytes:
        """Read the bytes ``[start, end)``, cut at the object's end."""
        found = None if start == end else self._range(call, name, start, end)
        if found is not None:
            return found.data
        size_bytes = self.info(call, name, key).size_bytes
        if start > size_bytes:
            raise call.invalid(f"a range from {start} of {size_bytes} bytes")
        return b""

    def chunks(self, call: Call, name: str, key: str, chunk_bytes: int) -> Iterator[bytes]:
        """Yield a whole object by ranges of one generation; its checksum is compared at the end."""
        first = self._range(call, name, 0, chunk_bytes)
        if first is None:
            if self.info(call, name, key).size_bytes:
                raise call.unavailable("the object was replaced while it was read")
            return
        expected = checker_for(first.headers)
        offset, piece = 0, first
        while True:
            if expected is not None:
                expected[0].add(piece.data)
            offset += len(piece.data)
            if (
                offset >= first.total_bytes
                and expected is not None
                and expected[0].result().value != expected[1]
            ):
                raise call.damaged("the bytes that arrived do not match the object's checksum")
            yield piece.data
            if offset >= first.total_bytes:
                return
            piece = self._next(call, name, offset, offset + chunk_bytes, first.generation)

    def _next(self, call: Call, name: str, start: int, end: int, generation: str) -> _Range:
        replaced = replace(call, if_absent=False).lost_race()
        try:
            found = self._range(call, name, start, end, generation)
        except NotFound:
            raise replaced from None
        if found is None or found.generation != generation:
            raise replaced
        return found

    def _range(
        self, call: Call, name: str, start: int, end: int | None, generation: str | None = None
    ) -> _Range | None:
        """Read a range that is not empty; None means that the object has no byte there."""
        params = {"alt": "media"} | ({} if generation is None else {"generation": generation})
        wanted = f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"
        with self._api.send(
            call,
            "GET",
            self._api.object_path(name),
            params=params,
            headers={"Range": wanted},
            accept=(200, 206, 416),
        ) as response:
            if response.status_code == 416:
                # Some servers send bytes here that they did not announce: the connection is spent.
                response.raw.close()
                return None
            data, headers, status = read_body(response), _lower(response.headers), response.status_code
        if status == 200:
            # A server may ignore the range and send everything.
            return _Range(data[start:end], len(data), headers) if start < len(data) else None
        match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        if match is None or int(match[1]) != start:
            raise call.unavailable("the answer is not the range that was asked for")
        total = int(match[3])
        if len(data) != (total if end is None else min(end, total)) - start:
            raise call.unavailable(f"the range arrived with {len(data)} bytes")
        return _Range(data, total, headers)


def parse_info(resource: Mapping[str, Any], key: str, call: Call) -> ObjectInfo:
    """Read an object's metadata."""
    try:
        updated = datetime.fromisoformat(resource["updated"])
        return ObjectInfo(
            key=key,
            size_bytes=int(resource.get("size", 0)),
            version=Version(str(int(resource["generation"]))),
            modified_ms=int(updated.timestamp() * 1000),
            nonce=(resource.get("metadata") or {}).get(NONCE_FIELD),
        )
    except (LookupError, ValueError, TypeError, AttributeError):
        raise call.unavailable("the answer is not an object's metadata") from None


def load_json(body: bytes, call: Call) -> dict[str, Any]:
    """Parse an answer that must be a JSON object."""
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise call.unanswered("the answer is not JSON")
    return found


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
