"""Bytes to and from S3: reads by range, single uploads, parts, copies by the server."""

from __future__ import annotations

import base64
import contextlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
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
from pyspark_checkpoint.store.base import ObjectInfo, Stored, Version
from pyspark_checkpoint.store.body import UploadBody
from pyspark_checkpoint.store.parallel import run_bounded
from pyspark_checkpoint.store.remote import Call
from pyspark_checkpoint.store.s3.s3_client import NONCE_FIELD, RequestParameters, S3Bucket, checked_etag
from pyspark_checkpoint.store.s3.s3_errors import Translated


def crc32_header(data: bytes) -> str:
    """Return the value of ``x-amz-checksum-crc32`` for ``data``."""
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode("ascii")


T = TypeVar("T")
ATTEMPTS = 4
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


_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class RangeRead:
    """Some bytes of an object, its version, and how many bytes it has in all."""

    data: bytes
    etag: str
    total_bytes: int


def read_whole(bucket: S3Bucket, call: Call, key: str, max_bytes: int | None = None) -> Stored:
    """Return an object from one request. Checked against the server's checksum where it gives one."""
    with Translated(call):
        answer = bucket.client.get_object(**bucket.asked(key))
        size_bytes = int(answer.get("ContentLength") or 0)
        if max_bytes is not None and size_bytes > max_bytes:
            answer["Body"].close()
            raise call.too_large(size_bytes, max_bytes)
        data = _body(answer)
    _check_length(answer, data, call)
    return Stored(data, Version(checked_etag(answer.get("ETag"), call)))


def read_range(
    bucket: S3Bucket, call: Call, key: str, start: int, end: int | None, *, etag: str | None = None
) -> RangeRead | None:
    """Return ``[start, end)`` cut at the object's end, or None if there is nothing at ``start``.

    With ``etag`` only of that version: ``Conflict`` otherwise. The range must not be empty.
    """
    wanted = f"bytes={start}-{'' if end is None else end - 1}"
    condition = {} if etag is None else {"IfMatch": etag}
    try:
        with Translated(call):
            try:
                answer = bucket.client.get_object(**bucket.asked(key), Range=wanted, **condition)
            except botocore.exceptions.ClientError as error:
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 416:
                    return None
                raise
            data = _body(answer)
    except NotFound:
        if etag is not None:
            raise call.lost_race() from None
        raise
    _check_length(answer, data, call)
    found = checked_etag(answer.get("ETag"), call)
    if "ContentRange" not in answer and answer["ResponseMetadata"]["HTTPStatusCode"] == 200:
        return RangeRead(data[start:end], found, len(data))  # a server without ranges: it sent all
    match = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
    if match is None or int(match[1]) != start or int(match[2]) + 1 - start != len(data):
        raise call.unanswered("another range arrived than was asked for")
    total = int(match[3])
    if len(data) != (total if end is None else min(end, total)) - start:
        raise call.unanswered("another range arrived than was asked for")
    return RangeRead(data, found, total)


def stream_chunks(bucket: S3Bucket, call: Call, key: str, chunk_bytes: int) -> Iterator[bytes]:
    """Yield an object by ranges, each on condition that it is still the version of the first.

    A consumer may take its time: no connection stays open between chunks. A chunk that fails in passing
    is asked for again, except the first, after which nothing would have to be thrown away.
    """
    first = read_range(bucket, call, key, 0, chunk_bytes)
    if first is None or not first.data:  # nothing at 0: the object is empty
        return
    yield first.data
    for start in range(chunk_bytes, first.total_bytes, chunk_bytes):
        read = partial(read_range, bucket, call, key, start, start + chunk_bytes, etag=first.etag)
        chunk = repeat_piece(read, bucket.clock)
        if chunk is None or chunk.total_bytes != first.total_bytes:
            raise call.lost_race()
        yield chunk.data


def _body(answer: dict[str, Any]) -> bytes:
    with contextlib.closing(answer["Body"]) as body:
        data: bytes = body.read()
    return data


def _check_length(answer: dict[str, Any], data: bytes, call: Call) -> None:
    if answer.get("ContentLength") != len(data):
        raise call.unanswered("the body was cut short")


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
        one = partial(_send_part, target, send, upload_id)
        parts = run_bounded(one, list(part_ranges(size_bytes, part_bytes)), target.concurrency)
        return _complete(target, upload_id, parts)
    except BaseException:
        _abort(target, upload_id)
        raise


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


def put_conditions(call: Call, if_absent: bool, if_match: Version | None) -> dict[str, str]:
    """Return the parameters that make a put conditional."""
    if if_match is None:
        return {"IfNoneMatch": "*"} if if_absent else {}
    if if_match.token in ("", "*"):
        raise call.lost_race()  # the version of no object, but a server may take it for that of any
    return {"IfMatch": if_match.token}


def put_metadata(nonce: str | None) -> dict[str, str]:
    """Return what is kept with the object."""
    return {} if nonce is None else {NONCE_FIELD: nonce}


def put_single(
    bucket: S3Bucket, call: Call, key: str, data: bytes, *, conditions: dict[str, str], nonce: str | None
) -> Version:
    """Store ``data`` by one request, which is carried out as a whole or not at all."""
    with Translated(call):
        answer = bucket.client.put_object(
            **bucket.begun(key),
            Body=data,
            ChecksumCRC32=crc32_header(data),
            Metadata=put_metadata(nonce),
            **conditions,
        )
    return Version(checked_etag(answer.get("ETag"), call))


def put_parts(
    bucket: S3Bucket,
    call: Call,
    key: str,
    body: UploadBody,
    *,
    conditions: dict[str, str],
    nonce: str | None,
) -> Version:
    """Store a large body in parts. What must fail anyway fails before the first byte is sent."""
    if conditions:
        _look_first(bucket, call, key, conditions.get("IfMatch"))
    target = PartsTarget(
        client=bucket.client,
        call=call,
        address=bucket.address(key),
        parameters=bucket.parameters,
        conditions=conditions,
        metadata=put_metadata(nonce),
        concurrency=bucket.settings.max_concurrency,
        clock=bucket.clock,
    )
    return Version(upload_parts(target, body, bucket.settings.part_size_bytes))


def _look_first(bucket: S3Bucket, call: Call, key: str, expected: str | None) -> None:
    try:
        found = bucket.head(key).version.token
    except NotFound:
        found = None
    if found != expected:
        raise call.lost_race()


_PART_BYTES = 512 * 1024 * 1024


class S3Copier:
    """Copies within a bucket: up to ``whole_bytes`` by one request, beyond that in parts."""

    def __init__(self, bucket: S3Bucket, *, whole_bytes: int, through_bytes: int) -> None:
        self._bucket = bucket
        self._whole_bytes = whole_bytes
        self._through_bytes = through_bytes
        # Whether the server honours conditional copies; None until that is known.
        self._conditional: bool | None = None

    def copy(self, source_key: str, target_key: str, *, if_absent: bool) -> Version:
        """Copy one version of an object. A HEAD and a copy, except for a store's first conditional one."""
        source = self._bucket.head(source_key)
        if if_absent and not self._conditional and source.size_bytes <= self._through_bytes:
            return self._copy_through(source, target_key)
        if source.size_bytes <= self._whole_bytes and (not if_absent or self._conditional):
            return self._copy_whole(source, target_key, if_absent)
        return self._copy_parts(source, target_key, if_absent)

    def _copy_whole(self, source: ObjectInfo, target_key: str, if_absent: bool) -> Version:
        call = self._bucket.call("copy", target_key, writes=True, if_absent=if_absent)
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        try:
            with Translated(call):
                answer = self._bucket.client.copy_object(
                    **self._bucket.begun(target_key),
                    **self._bucket.parameters.source_key,
                    CopySource=self._bucket.address(source.key),
                    CopySourceIfMatch=source.version.token,
                    MetadataDirective="REPLACE",  # the nonce belongs to the put that made the source
                    **condition,
                )
        except (AlreadyExists, Conflict):
            raise self._refused(source, target_key, if_absent) from None
        return Version(checked_etag(answer.get("CopyObjectResult", {}).get("ETag"), call))

    def _copy_parts(self, source: ObjectInfo, target_key: str, if_absent: bool) -> Version:
        target = PartsTarget(
            client=self._bucket.client,
            call=self._bucket.call("copy", target_key, writes=True, if_absent=if_absent),
            address=self._bucket.address(target_key),
            parameters=self._bucket.parameters,
            conditions={"IfNoneMatch": "*"} if if_absent else {},
            metadata={},
            concurrency=self._bucket.settings.max_concurrency,
            clock=self._bucket.clock,
        )
        part_bytes = min(_PART_BYTES, self._whole_bytes)
        try:
            made = copy_parts(
                target,
                self._bucket.address(source.key),
                source.version.token,
                source.size_bytes,
                part_bytes,
            )
        except (AlreadyExists, Conflict):
            raise self._refused(source, target_key, if_absent) from None
        return Version(made)

    def _copy_through(self, source: ObjectInfo, target_key: str) -> Version:
        """Copy by reading and creating, which is exact wherever conditional puts are."""
        data = read_whole(self._bucket, self._bucket.call("copy", source.key), source.key).data
        call = self._bucket.call("copy", target_key, writes=True, if_absent=True)
        made = put_single(self._bucket, call, target_key, data, conditions={"IfNoneMatch": "*"}, nonce=None)
        if self._conditional is None:
            try:
                # The target exists and has these bytes: refused, or at worst written once more.
                made = self._copy_whole(source, target_key, if_absent=True)
                self._conditional = False
            except AlreadyExists:
                self._conditional = True
            except StoreError:
                pass  # not learned this time; the copy itself was made
        return made

    def _refused(self, source: ObjectInfo, target_key: str, if_absent: bool) -> StoreError:
        """Say which of the two conditions did not hold: S3 gives one answer for both."""
        call = self._bucket.call("copy", target_key, writes=True, if_absent=if_absent)
        if if_absent:
            try:
                self._bucket.head(target_key)
            except NotFound:
                pass
            else:
                return call.lost_race()
        return call.unavailable(f"{source.key!r} was replaced meanwhile")
