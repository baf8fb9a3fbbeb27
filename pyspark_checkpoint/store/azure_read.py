"""Downloads from Azure: whole, by range, as a stream of ranges of one ETag; and what a listing means."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from azure.core.exceptions import HttpResponseError

from pyspark_checkpoint.errors import NotFound
from pyspark_checkpoint.store.azure_client import AzureContainer
from pyspark_checkpoint.store.azure_upload import NONCE_FIELD, conditions_for, version_of
from pyspark_checkpoint.store.base import ObjectInfo, Stored
from pyspark_checkpoint.store.call import Call

_FOLDER_FIELD = "hdi_isfolder"
_DAMAGED = "the bytes that arrived do not match the object's MD5"
_HIGH = re.compile("[\ud800-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class _Range:
    """A part of a blob as it arrived, and what the answer said of the whole."""

    data: bytes
    total_bytes: int
    etag: str
    md5: bytes | None
    """The digest of the whole blob, if the service keeps one: it does of blobs put by one request."""


class AzureReader:
    """Reads the blobs of one container. Holds no state of its own."""

    def __init__(self, container: AzureContainer) -> None:
        self._container = container

    def info(self, call: Call, name: str, key: str) -> ObjectInfo:
        """Ask for a blob's properties."""
        with self._container.asking(call) as client:
            found = client.get_blob_client(name).get_blob_properties()
            if is_folder(found):
                raise call.absent()
            return blob_info(found, key)

    def whole(self, call: Call, name: str, max_bytes: int | None = None) -> Stored:
        """Read a blob by one request, and check it against its MD5 if the service keeps one."""
        found = self._download(call, name, max_bytes=max_bytes)
        assert found is not None  # without a range no offset can be beyond the end
        if found.md5 is not None and _md5(found.data).digest() != found.md5:
            raise call.damaged(_DAMAGED)
        return Stored(found.data, version_of(found.etag))

    def part(self, call: Call, name: str, key: str, start: int, end: int | None) -> bytes:
        """Read the bytes ``[start, end)``, cut at the blob's end."""
        found = None if start == end else self._download(call, name, start, end)
        if found is not None:
            return found.data
        size_bytes = self.info(call, name, key).size_bytes
        if start > size_bytes:
            raise call.invalid(f"a range from {start} of {size_bytes} bytes")
        return b""

    def pinned(self, call: Call, name: str, start: int, end: int, etag: str) -> bytes:
        """Read a range that is not empty of exactly this version, else ``Conflict``."""
        replaced = replace(call, if_absent=False)
        try:
            found = self._download(replaced, name, start, end, etag)
        except NotFound:
            raise replaced.lost_race() from None
        if found is None or found.etag != etag:
            raise replaced.lost_race()
        return found.data

    def chunks(self, call: Call, name: str, key: str, chunk_bytes: int) -> Iterator[bytes]:
        """Yield a whole blob by ranges of one version."""
        first = self._download(call, name, 0, chunk_bytes)
        if first is None:
            if self.info(call, name, key).size_bytes:
                raise call.unavailable("the object was replaced while it was read")
            return
        digest, total, data = _md5(b""), first.total_bytes, first.data
        for start in range(0, total, chunk_bytes):
            end = min(start + chunk_bytes, total)
            if start:
                data = self.pinned(call, name, start, end, first.etag)
            if first.md5 is not None:
                digest.update(data)
                if end == total and digest.digest() != first.md5:
                    raise call.damaged(_DAMAGED)
            yield data

    def _download(
        self,
        call: Call,
        name: str,
        start: int | None = None,
        end: int | None = None,
        etag: str | None = None,
        *,
        max_bytes: int | None = None,
    ) -> _Range | None:
        """Read a range, or everything; None means that the blob has no byte there."""
        length = None if start is None or end is None else end - start
        with self._container.asking(call) as client:
            try:
                answer = client.get_blob_client(name).download_blob(
                    offset=start, length=length, **conditions_for(False, etag)
                )
                if max_bytes is not None and answer.size > max_bytes:
                    raise call.too_large(answer.size, max_bytes)
                data = bytes(answer.readall())
            except HttpResponseError as error:
                if error.status_code == 416:
                    return None
                raise
            found: Any = answer.properties
            if is_folder(found):
                raise call.absent()
            total = int(str(found.content_range).rpartition("/")[2])
            version_of(found.etag)
        begin = start or 0
        if start is not None and begin >= total:
            return None
        if len(data) != (total if end is None else min(end, total)) - begin:
            raise call.unavailable(f"{len(data)} bytes arrived, which is not the range asked for")
        md5 = found.content_settings.content_md5
        return _Range(data, total, str(found.etag), None if md5 is None else bytes(md5))


@dataclass(frozen=True, slots=True)
class RemoteBody:
    """A blob of one version as the body of an upload, read when it is needed."""

    reader: AzureReader
    call: Call
    name: str
    etag: str
    size_bytes: int

    def read(self, start: int, end: int) -> bytes:
        """Return exactly the bytes ``[start, end)``."""
        return self.reader.pinned(self.call, self.name, start, end, self.etag)


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)


def is_folder(properties: Any) -> bool:
    """Whether a blob is only the marker of a directory, as hierarchical namespaces and Hadoop make."""
    return str((properties.metadata or {}).get(_FOLDER_FIELD)).lower() == "true"


def blob_info(properties: Any, key: str) -> ObjectInfo:
    """What a store tells of a blob."""
    return ObjectInfo(
        key=key,
        size_bytes=int(properties.size),
        version=version_of(properties.etag),
        modified_ms=int(properties.last_modified.timestamp() * 1000),
        nonce=(properties.metadata or {}).get(NONCE_FIELD),
    )


def in_key_order(listed: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Bring a listing in the order of UTF-16 units into the order of UTF-8 bytes, lazily.

    The two differ only between keys that are equal up to a character above U+D7FF. In either order
    these come one after another, so that only such a run is held back and sorted.
    """
    held: list[ObjectInfo] = []
    stem: str | None = None
    for info in listed:
        match = _HIGH.search(info.key)
        found = None if match is None else info.key[: match.start()]
        if found is None or found != stem:
            yield from sorted(held, key=lambda item: item.key.encode())
            held = []
        stem = found
        if found is None:
            yield info
        else:
            held.append(info)
    yield from sorted(held, key=lambda item: item.key.encode())
