"""Bytes to and from Azure: ranges of one ETag, one Put Blob as a rule, staged blocks for large bodies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobBlock

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.store.azure.azure_client import AzureContainer
from pyspark_checkpoint.store.base import ObjectInfo, Version
from pyspark_checkpoint.store.parallel import run_bounded
from pyspark_checkpoint.store.ranged import RangeFound, RangeReader
from pyspark_checkpoint.store.remote import Call

NONCE_FIELD = "ckptnonce"
"""Names of metadata are identifiers on Azure: no hyphen."""

SINGLE_PUT_BYTES = 32 * 1024 * 1024
"""Up to here a body goes up in one request, held in memory; beyond, in blocks, several at once."""

_MAX_BLOCKS = 50_000


@dataclass(frozen=True, slots=True)
class AzureUpload:
    """What is to be stored: where, which bytes, under which condition."""

    name: str
    size_bytes: int
    read: Callable[[int, int], bytes]
    """Gives exactly the bytes from here to there, to many threads."""
    nonce: str | None
    conditions: dict[str, Any]

    @property
    def metadata(self) -> dict[str, str]:
        """What is kept beside the bytes."""
        return {} if self.nonce is None else {NONCE_FIELD: self.nonce}


def block_ranges(size_bytes: int, part_bytes: int) -> list[tuple[int, int]]:
    """Cut a body into blocks of ``part_bytes``, larger ones only where Azure's 50,000 would not do."""
    step = max(part_bytes, -(-size_bytes // _MAX_BLOCKS))
    return [(start, min(start + step, size_bytes)) for start in range(0, size_bytes, step)]


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
    data = wanted.read(0, wanted.size_bytes)
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
    ranges = block_ranges(wanted.size_bytes, part_bytes)
    blocks = [f"{attempt}-{index:05}" for index in range(len(ranges))]
    staging = replace(call, writes=False, if_absent=False, if_match=False)

    def stage(block_range: tuple[str, tuple[int, int]]) -> None:
        block, (start, end) = block_range
        data = wanted.read(start, end)
        with container.asking(staging) as client:
            client.get_blob_client(wanted.name).stage_block(
                block, data, length=len(data), validate_content=True
            )

    run_bounded(stage, list(zip(blocks, ranges, strict=True)), max_concurrency)
    with container.asking(call) as client:
        answer = client.get_blob_client(wanted.name).commit_block_list(
            [BlobBlock(block) for block in blocks],
            metadata=wanted.metadata,
            validate_content=True,
            **wanted.conditions,
        )
        return version_of(answer["etag"])


_FOLDER_FIELD = "hdi_isfolder"
_HIGH = re.compile("[\ud800-\U0010ffff]")


class _Md5Check:
    """The service keeps the digest of the whole of a blob that was put by one request."""

    def __init__(self, expected: bytes) -> None:
        self._expected, self._digest = expected, hashlib.md5(usedforsecurity=False)

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        self._digest.update(piece)

    def is_right(self) -> bool:
        """Whether the pieces so far are the whole blob."""
        return self._digest.digest() == self._expected


class AzureReader(RangeReader):
    """Reads by ETag."""

    def __init__(self, container: AzureContainer) -> None:
        self._container = container

    def info(self, call: Call, name: str, key: str) -> ObjectInfo:
        """Ask for a blob's properties."""
        with self._container.asking(call) as client:
            found = client.get_blob_client(name).get_blob_properties()
            if is_folder(found):
                raise call.absent()
            return blob_info(found, key)

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
        """Read a range, or everything; None means that the blob has no byte there."""
        length = None if start is None or end is None else end - start
        with self._container.asking(call) as client:
            try:
                answer = client.get_blob_client(name).download_blob(
                    offset=start,
                    length=length,
                    **conditions_for(False, None if version is None else f'"{version}"'),
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
            etag = version_of(found.etag).token
        begin = start or 0
        if start is not None and begin >= total:
            return None
        if len(data) != (total if end is None else min(end, total)) - begin:
            raise call.unavailable(f"{len(data)} bytes arrived, which is not the range asked for")
        md5 = found.content_settings.content_md5
        return RangeFound(data, total, etag, None if md5 is None else _Md5Check(bytes(md5)))


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
