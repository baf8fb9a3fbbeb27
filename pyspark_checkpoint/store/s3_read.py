"""Reading from S3: whole, by range, and in chunks of one version."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import botocore.exceptions

from pyspark_checkpoint.errors import NotFound
from pyspark_checkpoint.store.base import Stored, Version
from pyspark_checkpoint.store.call import Call
from pyspark_checkpoint.store.s3_bucket import S3Bucket, checked_etag
from pyspark_checkpoint.store.s3_errors import Translated
from pyspark_checkpoint.store.s3_repeat import repeat_piece

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
