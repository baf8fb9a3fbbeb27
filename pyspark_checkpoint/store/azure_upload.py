"""Uploads to Azure: one Put Blob as a rule, staged blocks and one commit for large bodies.

Either way one request, with the condition in it, makes the object visible. Bytes travel with an MD5 that
the service compares (about 650 MB/s a core; it offers a cheaper CRC64, but emulators refuse that).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from azure.core import MatchConditions
from azure.storage.blob import BlobBlock

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.store.azure_client import AzureContainer
from pyspark_checkpoint.store.base import Version
from pyspark_checkpoint.store.call import Call
from pyspark_checkpoint.store.concurrent import run_all

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
