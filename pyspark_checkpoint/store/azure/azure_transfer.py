"""Bytes to and from Azure: ranges of one ETag, one Put Blob as a rule, staged blocks for large bodies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobBlock

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import NotFound
from pyspark_checkpoint.store.azure.azure_client import AzureContainer
from pyspark_checkpoint.store.base import ObjectInfo, Stored, Version
from pyspark_checkpoint.store.remote import Call, run_all

NONCE_FIELD = "ckptnonce"
"""Names of metadata are identifiers on Azure: no hyphen."""

SINGLE_PUT_BYTES = 32 * 1024 * 1024
"""Up to here a body goes up in one request, held in memory; beyond, in blocks, several at once."""

_MAX_BLOCKS = 50_000


class Readable(Protocol):
    """Bytes of known size that can be read from any offset, by many threads."""

    @property
    def size_bytes(self) -> int:
        """How many there are."""

    def read(self, start: int, end: int) -> bytes:
        """Return exactly the bytes ``[start, end)``."""


@dataclass(frozen=True, slots=True)
class AzureUpload:
    """What is to be stored: where, which bytes, under which condition."""

    name: str
    body: Readable
    nonce: str | None
    conditions: dict[str, Any]

    @property
    def metadata(self) -> dict[str, str]:
        """What is kept beside the bytes."""
        return {} if self.nonce is None else {NONCE_FIELD: self.nonce}


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """How a body is cut: every block but the last has ``block_bytes``."""

    size_bytes: int
    block_bytes: int

    def ranges(self) -> list[tuple[int, int]]:
        """The half-open range of each block, in order."""
        starts = range(0, self.size_bytes, self.block_bytes)
        return [(start, min(start + self.block_bytes, self.size_bytes)) for start in starts]


def plan_blocks(size_bytes: int, part_bytes: int) -> BlockPlan:
    """Cut a body into blocks of ``part_bytes``, larger ones only where Azure's 50,000 would not do."""
    return BlockPlan(size_bytes, max(part_bytes, -(-size_bytes // _MAX_BLOCKS)))


def version_of(etag: object) -> Version:
    """The version that an ETag stands for. Listings give it without quotes, everything else with.

    An answer without one is ``ValueError``: it proves nothing.
    """
    if not isinstance(etag, str) or not etag.strip('"'):
        raise ValueError("no ETag")
    return Version(etag.strip('"'))


def conditions_for(if_absent: bool, etag: str | None) -> dict[str, Any]:
    """The SDK's arguments for a condition."""
    if if_absent:
        return {"match_condition": MatchConditions.IfMissing}
    if etag is not None:
        return {"etag": etag, "match_condition": MatchConditions.IfNotModified}
    return {}


def upload_single(container: AzureContainer, call: Call, wanted: AzureUpload) -> Version:
    """Store the body by one request and return its version."""
    data = wanted.body.read(0, wanted.body.size_bytes)
    with container.asking(call) as client:
        answer = client.get_blob_client(wanted.name).upload_blob(
            data,
            length=len(data),
            overwrite=True,
            metadata=wanted.metadata,
            validate_content=True,
            **wanted.conditions,
        )
        return version_of(answer["etag"])


def upload_blocks(
    container: AzureContainer,
    call: Call,
    wanted: AzureUpload,
    *,
    clock: Clock,
    part_bytes: int,
    max_concurrency: int,
) -> Version:
    """Stage the body in blocks, commit them by one request with the condition, and return the version.

    The names of the blocks are this attempt's own, so that two writers of one key never mix. Blocks of
    an attempt that failed are no object; nobody can remove them, and Azure does after a week, or when
    another put of the key succeeds.
    """
    attempt = clock.nonce()
    ranges = plan_blocks(wanted.body.size_bytes, part_bytes).ranges()
    blocks = [f"{attempt}-{index:05}" for index in range(len(ranges))]
    staging = replace(call, writes=False, if_absent=False, if_match=False)

    def stage(block: str, start: int, end: int) -> None:
        data = wanted.body.read(start, end)
        with container.asking(staging) as client:
            client.get_blob_client(wanted.name).stage_block(
                block, data, length=len(data), validate_content=True
            )

    run_all(
        [partial(stage, block, start, end) for block, (start, end) in zip(blocks, ranges, strict=True)],
        max_concurrency,
    )
    with container.asking(call) as client:
        answer = client.get_blob_client(wanted.name).commit_block_list(
            [BlobBlock(block) for block in blocks],
            metadata=wanted.metadata,
            validate_content=True,
            **wanted.conditions,
        )
        return version_of(answer["etag"])


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
