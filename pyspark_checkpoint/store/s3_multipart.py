"""Objects that go up, or are copied, in parts: bounded memory, several parts at a time, all or nothing.

Until the upload is completed nothing is visible, so that a failure before it is ``Unavailable``. Any
failure aborts the upload, after the parts still under way have ended, so that no part is left. Only
the name of an upload whose very first answer was lost stays with the service: empty, and free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import StoreError
from pyspark_checkpoint.store.call import Call
from pyspark_checkpoint.store.s3_bucket import RequestParameters
from pyspark_checkpoint.store.s3_checksum import crc32_header
from pyspark_checkpoint.store.s3_errors import Translated
from pyspark_checkpoint.store.s3_repeat import repeat_piece
from pyspark_checkpoint.store.upload_body import UploadBody

MIN_PART_BYTES = 5 * 1024 * 1024
MAX_PARTS = 10_000
_ABORT_ATTEMPTS = 3
_ABORT_DELAY_SECONDS = 0.2

Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PartRange:
    """The bytes ``[start, end)`` of an object, as its part of that number."""

    number: int
    start: int
    end: int


SendPart = Callable[[str, PartRange], Part]
"""Sends one part of the upload with that id, and returns what completing it needs."""


@dataclass(frozen=True, slots=True)
class PartsTarget:
    """Where the parts go, and under which condition they become an object."""

    client: Any
    call: Call
    address: Mapping[str, str]
    """Bucket and Key."""
    parameters: RequestParameters
    conditions: Mapping[str, str]
    metadata: Mapping[str, str]
    concurrency: int
    clock: Clock

    @property
    def asked(self) -> dict[str, Any]:
        """The parameters of a request that touches the bytes."""
        return {**self.address, **self.parameters.every, **self.parameters.customer_key}


def upload_parts(target: PartsTarget, body: UploadBody, part_bytes: int) -> str:
    """Upload ``body`` and return the new object's ETag. Memory: ``concurrency`` parts."""

    def send(upload_id: str, part: PartRange) -> Part:
        data = body.read(part.start, part.end)
        checksum = crc32_header(data)
        answer = target.client.upload_part(
            **target.asked,
            UploadId=upload_id,
            PartNumber=part.number,
            Body=data,
            ChecksumCRC32=checksum,
        )
        return {"PartNumber": part.number, "ETag": answer.get("ETag"), "ChecksumCRC32": checksum}

    return _run(target, body.size_bytes, part_bytes, send, {"ChecksumAlgorithm": "CRC32"})


def copy_parts(
    target: PartsTarget, source: Mapping[str, str], etag: str, size_bytes: int, part_bytes: int
) -> str:
    """Copy an object by the server, part by part, if it keeps being ``etag``; return the new ETag."""

    def send(upload_id: str, part: PartRange) -> Part:
        answer = target.client.upload_part_copy(
            **target.asked,
            **target.parameters.source_key,
            UploadId=upload_id,
            PartNumber=part.number,
            CopySource=dict(source),
            CopySourceRange=f"bytes={part.start}-{part.end - 1}",
            CopySourceIfMatch=etag,
        )
        return {"PartNumber": part.number, "ETag": answer.get("CopyPartResult", {}).get("ETag")}

    return _run(target, size_bytes, part_bytes, send, {})


def part_ranges(size_bytes: int, part_bytes: int) -> Iterator[PartRange]:
    """Yield the parts of an object: each at least 5 MiB but for the last, at most 10,000 of them."""
    step = max(part_bytes, MIN_PART_BYTES, -(-size_bytes // MAX_PARTS))
    for number, start in enumerate(range(0, size_bytes, step), 1):
        yield PartRange(number, start, min(start + step, size_bytes))


def _run(
    target: PartsTarget, size_bytes: int, part_bytes: int, send: SendPart, begin: Mapping[str, str]
) -> str:
    invisible = replace(target.call, writes=False)
    with Translated(invisible):
        answer = target.client.create_multipart_upload(
            **target.address,
            **target.parameters.every,
            **target.parameters.begin,
            Metadata=dict(target.metadata),
            **begin,
        )
    upload_id = answer.get("UploadId")
    if not upload_id:
        raise invisible.unanswered("the answer names no upload")
    try:
        parts = _send_all(target, upload_id, list(part_ranges(size_bytes, part_bytes)), send)
        return _complete(target, upload_id, parts)
    except BaseException:
        _abort(target, upload_id)
        raise


def _send_all(target: PartsTarget, upload_id: str, ranges: list[PartRange], send: SendPart) -> list[Part]:
    """Send every part, ``concurrency`` at a time. Leaving, also by an error, waits for those under way."""
    parts: list[Part] = []
    under_way: set[Future[Part]] = set()
    with ThreadPoolExecutor(target.concurrency, thread_name_prefix="ckpt-part") as pool:
        for part_range in ranges:
            if len(under_way) >= target.concurrency:
                finished, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                parts.extend(part.result() for part in finished)
            under_way.add(pool.submit(_send_part, target, send, upload_id, part_range))
        parts.extend(part.result() for part in under_way)
    parts.sort(key=lambda part: int(part["PartNumber"]))
    assert [part["PartNumber"] for part in parts] == [part_range.number for part_range in ranges]
    return parts


def _send_part(target: PartsTarget, send: SendPart, upload_id: str, part_range: PartRange) -> Part:
    """Send one part, and again if that fails in passing: a part is invisible and may be repeated."""
    call = replace(target.call, writes=False)

    def attempt() -> Part:
        with Translated(call):
            part = send(upload_id, part_range)
        if not part.get("ETag"):
            raise call.unanswered("the answer to a part has no ETag")
        return part

    return repeat_piece(attempt, target.clock)


def _complete(target: PartsTarget, upload_id: str, parts: list[Part]) -> str:
    """Make the parts an object: the one request that decides the condition and has an effect."""
    with Translated(target.call):
        answer = target.client.complete_multipart_upload(
            **target.asked, UploadId=upload_id, MultipartUpload={"Parts": parts}, **target.conditions
        )
    etag = answer.get("ETag")
    if not etag:
        raise target.call.unanswered("the answer to the completed upload has no ETag")
    return str(etag)


def _abort(target: PartsTarget, upload_id: str) -> None:
    """Give the parts up. What was completed after all stays: its upload is no longer there to abort."""
    call = replace(target.call, verb="abort", writes=False, if_absent=False, if_match=False)
    for attempt in range(_ABORT_ATTEMPTS):
        try:
            with Translated(call):
                target.client.abort_multipart_upload(
                    **target.address, **target.parameters.every, UploadId=upload_id
                )
            return
        except StoreError as error:
            if "NoSuchUpload" in error.message:
                return
            target.clock.sleep(_ABORT_DELAY_SECONDS * 2**attempt)
