"""Writing to S3: one PutObject as a rule, parts for very large bodies."""

from __future__ import annotations

from pyspark_checkpoint.errors import NotFound
from pyspark_checkpoint.store.base import Version
from pyspark_checkpoint.store.call import Call
from pyspark_checkpoint.store.s3_bucket import NONCE_FIELD, S3Bucket, checked_etag
from pyspark_checkpoint.store.s3_checksum import crc32_header
from pyspark_checkpoint.store.s3_errors import Translated
from pyspark_checkpoint.store.s3_multipart import PartsTarget, upload_parts
from pyspark_checkpoint.store.upload_body import UploadBody


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
