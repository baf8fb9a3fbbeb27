"""Bytes to and from S3: reads by range, single uploads, parts, copies by the server."""

from __future__ import annotations

import base64
import contextlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import botocore.exceptions

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import (
    AlreadyExists,
    ChecksumRefused,
    Conflict,
    NotFound,
    StoreError,
    Unavailable,
)
from pyspark_checkpoint.store.base import ObjectInfo, Version
from pyspark_checkpoint.store.body import UploadBody
from pyspark_checkpoint.store.parallel import run_bounded
from pyspark_checkpoint.store.ranged import RangeFound, RangeReader, range_header, range_total
from pyspark_checkpoint.store.remote import Call
from pyspark_checkpoint.store.s3.s3_client import NONCE_FIELD, S3Bucket, checked_etag
from pyspark_checkpoint.store.s3.s3_errors import translated


def crc32_header(data: bytes) -> str:
    """Return the value of ``x-amz-checksum-crc32`` for ``data``."""
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode("ascii")


T = TypeVar("T")
ATTEMPTS = 4
_NO_SUCH_KEY = "NoSuchKey"
_FIRST_DELAY_SECONDS = 0.2
_MAX_DELAY_SECONDS = 5.0


def repeat_piece(piece: Callable[[], T], clock: Clock) -> T:
    """Call ``piece`` until it works, at most four times; the last failure is passed on."""
    delay_seconds = _FIRST_DELAY_SECONDS
    for _ in range(ATTEMPTS - 1):
        try:
            return piece()
        except (Unavailable, ChecksumRefused) as error:
            asked = getattr(error, "retry_after_seconds", None) or 0.0
            clock.sleep(max(asked, delay_seconds * (0.5 + clock.jitter() / 2)))
            delay_seconds = min(2 * delay_seconds, _MAX_DELAY_SECONDS)
    return piece()


class S3Reader(RangeReader):
    """Reads by ETag."""

    def __init__(self, bucket: S3Bucket) -> None:
        self._bucket = bucket

    def info(self, call: Call, name: str, key: str) -> ObjectInfo:  # noqa: ARG002
        """Ask for what is known of an object."""
        return self._bucket.head(call, name)

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
        """Read a range, or everything, which boto checks against the checksum of the server, if any."""
        asked = {} if start is None else {"Range": range_header(start, end)}
        asked |= {} if version is None else {"IfMatch": version}
        with translated(call):
            try:
                answer = self._bucket.client.get_object(**self._bucket.asked(name), **asked)
            except botocore.exceptions.ClientError as error:
                if start is not None and _status(error.response) == 416:
                    return None
                if error.response.get("Error", {}).get("Code") == _NO_SUCH_KEY:
                    self._bucket.note_there()
                raise
            self._bucket.note_there()
            with contextlib.closing(answer["Body"]) as body:
                size_bytes = int(answer.get("ContentLength") or 0)
                if max_bytes is not None and size_bytes > max_bytes:
                    raise call.too_large(size_bytes, max_bytes)
                data: bytes = body.read()
        if answer.get("ContentLength") != len(data):
            raise call.unanswered("the body was cut short")
        etag = checked_etag(answer.get("ETag"), call)
        if start is None:
            return RangeFound(data, len(data), etag, None)
        if "ContentRange" not in answer and _status(answer) == 200:
            # A server without ranges: it sent all.
            return RangeFound(data[start:end], len(data), etag, None) if start < len(data) else None
        total = range_total(answer.get("ContentRange", ""), data, start, end, call)
        return RangeFound(data, total, etag, None)

    def pinned(self, call: Call, name: str, start: int, end: int, version: str) -> bytes:
        """The same again if it fails in passing: what came before it would have to be thrown away."""
        return repeat_piece(
            lambda: super(S3Reader, self).pinned(call, name, start, end, version), self._bucket.clock
        )


def _status(answer: Mapping[str, Any]) -> int | None:
    status: int | None = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


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
class Target:
    """The object that is to be, and under which condition."""

    bucket: S3Bucket
    call: Call
    name: str
    conditions: Mapping[str, str]
    metadata: Mapping[str, str]


def put_target(
    bucket: S3Bucket, call: Call, name: str, if_match: Version | None = None, nonce: str | None = None
) -> Target:
    """Say what a put or a copy is to make; a version that no object can have is a lost race."""
    conditions = {"IfNoneMatch": "*"} if call.if_absent else {}
    if if_match is not None:
        if if_match.token in ("", "*"):
            raise call.lost_race()  # the version of no object, but a server may take it for that of any
        conditions = {"IfMatch": if_match.token}
    return Target(bucket, call, name, conditions, {} if nonce is None else {NONCE_FIELD: nonce})


def put_single(target: Target, data: bytes) -> Version:
    """Store ``data`` by one request, which is carried out as a whole or not at all."""
    with translated(target.call):
        answer = target.bucket.client.put_object(
            **target.bucket.begun(target.name),
            Body=data,
            ChecksumCRC32=crc32_header(data),
            Metadata=dict(target.metadata),
            **target.conditions,
        )
    return Version(checked_etag(answer.get("ETag"), target.call))


def put_parts(target: Target, body: UploadBody) -> Version:
    """Store a large body in parts, as many in memory as go up at once.

    What must fail anyway fails before the first byte is sent.
    """
    if target.conditions:
        try:
            found = target.bucket.head(target.call, target.name).version.token
        except NotFound:
            found = None
        if found != target.conditions.get("IfMatch"):
            raise target.call.lost_race()

    def send(upload_id: str, part: PartRange) -> Part:
        data = body.read(part.start, part.end)
        checksum = crc32_header(data)
        answer = target.bucket.client.upload_part(
            **target.bucket.asked(target.name),
            UploadId=upload_id,
            PartNumber=part.number,
            Body=data,
            ChecksumCRC32=checksum,
        )
        return {"PartNumber": part.number, "ETag": answer.get("ETag"), "ChecksumCRC32": checksum}

    ranges = part_ranges(body.size_bytes, target.bucket.settings.part_size_bytes)
    return _make_of_parts(target, ranges, send, {"ChecksumAlgorithm": "CRC32"})


def copy_parts(target: Target, source_name: str, source: ObjectInfo, part_bytes: int) -> Version:
    """Copy an object by the server, part by part, if it keeps its version."""

    def send(upload_id: str, part: PartRange) -> Part:
        answer = target.bucket.client.upload_part_copy(
            **target.bucket.asked(target.name),
            **target.bucket.parameters.source_key,
            UploadId=upload_id,
            PartNumber=part.number,
            CopySource=target.bucket.address(source_name),
            CopySourceRange=f"bytes={part.start}-{part.end - 1}",
            CopySourceIfMatch=source.version.token,
        )
        return {"PartNumber": part.number, "ETag": answer.get("CopyPartResult", {}).get("ETag")}

    return _make_of_parts(target, part_ranges(source.size_bytes, part_bytes), send, {})


def part_ranges(size_bytes: int, part_bytes: int) -> list[PartRange]:
    """The parts of an object: each at least 5 MiB but for the last, at most 10,000 of them."""
    step = max(part_bytes, MIN_PART_BYTES, -(-size_bytes // MAX_PARTS))
    return [
        PartRange(number, start, min(start + step, size_bytes))
        for number, start in enumerate(range(0, size_bytes, step), 1)
    ]


def _make_of_parts(
    target: Target, ranges: Sequence[PartRange], send: SendPart, begin: Mapping[str, str]
) -> Version:
    """Send the parts, which nobody sees, and make them an object; whatever goes wrong, give them up."""
    bucket, invisible = target.bucket, replace(target.call, writes=False)
    with translated(invisible):
        answer = bucket.client.create_multipart_upload(
            **bucket.begun(target.name), Metadata=dict(target.metadata), **begin
        )
    upload_id = answer.get("UploadId")
    if not upload_id:
        raise invisible.unanswered("the answer names no upload")

    def send_once(part_range: PartRange) -> Part:
        with translated(invisible):
            part = send(upload_id, part_range)
        if not part.get("ETag"):
            raise invisible.unanswered("the answer to a part has no ETag")
        return part

    def send_part(part_range: PartRange) -> Part:
        return repeat_piece(lambda: send_once(part_range), bucket.clock)

    try:
        parts = run_bounded(send_part, ranges, bucket.settings.max_concurrency)
        return _complete(target, upload_id, parts)
    except BaseException:
        _abort(target, upload_id)
        raise


def _complete(target: Target, upload_id: str, parts: list[Part]) -> Version:
    """Make the parts an object: the one request that decides the condition and has an effect."""
    with translated(target.call):
        answer = target.bucket.client.complete_multipart_upload(
            **target.bucket.asked(target.name),
            UploadId=upload_id,
            MultipartUpload={"Parts": parts},
            **target.conditions,
        )
    if not answer.get("ETag"):
        raise target.call.unanswered("the answer to the completed upload has no ETag")
    return Version(str(answer["ETag"]))


def _abort(target: Target, upload_id: str) -> None:
    """Give the parts up. What was completed after all stays: its upload is no longer there to abort."""
    bucket, call = target.bucket, Call(target.call.where, "abort", target.call.key)
    for attempt in range(_ABORT_ATTEMPTS):
        try:
            with translated(call):
                bucket.client.abort_multipart_upload(
                    **bucket.address(target.name), **bucket.parameters.every, UploadId=upload_id
                )
            return
        except StoreError as error:
            if "NoSuchUpload" in error.message:
                return
            bucket.clock.sleep(_ABORT_DELAY_SECONDS * 2**attempt)


_PART_BYTES = 512 * 1024 * 1024


class S3Copier:
    """Copies within a bucket: up to ``whole_bytes`` by one request, beyond that in parts."""

    def __init__(self, bucket: S3Bucket, *, whole_bytes: int, through_bytes: int) -> None:
        self._bucket = bucket
        self._whole_bytes = whole_bytes
        self._through_bytes = through_bytes
        # Whether the server honours conditional copies; None until that is known.
        self._conditional: bool | None = None

    def copy(self, reading: Call, source_name: str, target: Target) -> Version:
        """Copy one version of an object. A HEAD and a copy, except for a store's first conditional one."""
        source, if_absent = self._bucket.head(reading, source_name), target.call.if_absent
        if if_absent and not self._conditional and source.size_bytes <= self._through_bytes:
            return self._copy_through(reading, source_name, source, target)
        if source.size_bytes <= self._whole_bytes and (not if_absent or self._conditional):
            return self._copy_whole(source_name, source, target)
        try:
            return copy_parts(target, source_name, source, min(_PART_BYTES, self._whole_bytes))
        except (AlreadyExists, Conflict):
            raise self._refused(source, target) from None

    def _copy_whole(self, source_name: str, source: ObjectInfo, target: Target) -> Version:
        try:
            with translated(target.call):
                answer = self._bucket.client.copy_object(
                    **self._bucket.begun(target.name),
                    **self._bucket.parameters.source_key,
                    CopySource=self._bucket.address(source_name),
                    CopySourceIfMatch=source.version.token,
                    MetadataDirective="REPLACE",  # the nonce belongs to the put that made the source
                    **target.conditions,
                )
        except (AlreadyExists, Conflict):
            raise self._refused(source, target) from None
        return Version(checked_etag(answer.get("CopyObjectResult", {}).get("ETag"), target.call))

    def _copy_through(self, reading: Call, source_name: str, source: ObjectInfo, target: Target) -> Version:
        """Copy by reading and creating, which is exact wherever conditional puts are."""
        made = put_single(target, S3Reader(self._bucket).whole(reading, source_name).data)
        if self._conditional is None:
            try:
                # The target exists and has these bytes: refused, or at worst written once more.
                made = self._copy_whole(source_name, source, target)
                self._conditional = False
            except AlreadyExists:
                self._conditional = True
            except StoreError:
                pass  # not learned this time; the copy itself was made
        return made

    def _refused(self, source: ObjectInfo, target: Target) -> StoreError:
        """Say which of the two conditions did not hold: S3 gives one answer for both."""
        if target.call.if_absent:
            try:
                self._bucket.head(target.call, target.name)
            except NotFound:
                pass
            else:
                return target.call.lost_race()
        return target.call.unavailable(f"{source.key!r} was replaced meanwhile")
