"""Amazon S3 and servers that speak its language: ``s3://``. A version is an object's ETag.

Conditions are ``If-None-Match: *`` and ``If-Match``; the nonce is kept as metadata ``ckpt-nonce``;
uploads carry a CRC32 that the server verifies, and whole reads are checked against the one that the
server gives back, if it does.

Bodies of up to 64 MiB go up in one PutObject, whose condition every server that passes the probe
decides atomically. Larger ones go up in parts, and the condition is decided when these are completed:
atomically by Amazon S3, while SeaweedFS lets two such uploads both win. Before a large conditional
upload the key is looked at, so that most of what must fail fails early."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.store.base import (
    CHUNK_BYTES,
    Body,
    ObjectInfo,
    ObjectStore,
    Stored,
    Version,
    check_conditions,
    check_prefix,
    check_range,
)
from pyspark_checkpoint.store.body import UploadBody
from pyspark_checkpoint.store.remote import Call
from pyspark_checkpoint.store.s3.s3_client import S3Bucket, checked_etag, close_client
from pyspark_checkpoint.store.s3.s3_errors import Translated, translate_code
from pyspark_checkpoint.store.s3.s3_transfer import (
    S3Copier,
    put_conditions,
    put_parts,
    put_single,
    read_range,
    read_whole,
    stream_chunks,
)
from pyspark_checkpoint.store.settings import S3Settings

_ORDERED_SERVERS = ("AmazonS3", "MinIO")
_DIRECTORY_BUCKET = "--x-s3"


class S3Lister:
    """Lists the objects below the store's prefix."""

    def __init__(self, bucket: S3Bucket) -> None:
        self._bucket = bucket
        self._is_ordered: bool | None = True if bucket.settings.endpoint is None else None
        if bucket.settings.bucket.endswith(_DIRECTORY_BUCKET):
            self._is_ordered = False

    def list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """Yield what begins with ``prefix`` and comes after ``start_after``."""
        call = self._bucket.call("list", prefix or None)
        first = None
        if self._is_ordered is not False:
            first = self._page(call, self._request(prefix, start_after))
            if self._is_ordered is None:
                self._is_ordered = _server(first) in _ORDERED_SERVERS
        if self._is_ordered:
            yield from self._in_order(call, self._request(prefix, start_after), first)
            return
        if start_after is not None:
            first = None
        found = sorted(self._all(call, self._request(prefix, None), first), key=_byte_order)
        after = b"" if start_after is None else start_after.encode("utf-8", "surrogatepass")
        yield from (info for info in found if _byte_order(info) > after)

    def _in_order(
        self, call: Call, request: dict[str, str], first: dict[str, Any] | None
    ) -> Iterator[ObjectInfo]:
        last = b""
        for info in self._all(call, request, first):
            present = _byte_order(info)
            if present <= last:
                raise call.invalid("the server lists keys out of order", "it cannot hold a store")
            last = present
            yield info

    def _all(
        self, call: Call, request: dict[str, str], first: dict[str, Any] | None
    ) -> Iterator[ObjectInfo]:
        """Yield the objects of every page, as the server orders them. ``first`` is fetched already."""
        page = first or self._page(call, request)
        while True:
            for item in page.get("Contents", ()):
                if not item["Key"].endswith("/"):  # by which other programs remember a directory
                    yield self._info(item, call)
            if not page["IsTruncated"]:
                return
            if not page.get("NextContinuationToken"):
                raise call.unanswered("the listing goes on, but the answer does not say where")
            page = self._page(call, {**request, "ContinuationToken": page["NextContinuationToken"]})

    def _page(self, call: Call, request: dict[str, str]) -> dict[str, Any]:
        with Translated(call):
            page: dict[str, Any] = self._bucket.client.list_objects_v2(**request)
        if "IsTruncated" not in page:
            raise call.unanswered("the answer was cut short")
        return page

    def _request(self, prefix: str, start_after: str | None) -> dict[str, str]:
        request = {
            "Bucket": self._bucket.bucket_name,
            "Prefix": self._bucket.prefix + prefix,
            **self._bucket.parameters.every,
        }
        if start_after is not None:
            request["StartAfter"] = self._bucket.prefix + start_after
        return request

    def _info(self, item: dict[str, Any], call: Call) -> ObjectInfo:
        return ObjectInfo(
            key=item["Key"][len(self._bucket.prefix) :],
            size_bytes=item["Size"],
            version=Version(checked_etag(item.get("ETag"), call)),
            modified_ms=int(item["LastModified"].timestamp() * 1000),
        )


def _server(page: dict[str, Any]) -> str:
    headers = page.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("server", "")).partition("/")[0].partition(" ")[0]


def _byte_order(info: ObjectInfo) -> bytes:
    return info.key.encode("utf-8", "surrogatepass")


BATCH_KEYS = 1000


def delete_keys(bucket: S3Bucket, keys: Iterable[str]) -> None:
    """Remove ``keys``. Every key is checked before the first request; absent objects are fine."""
    names = {bucket.name(key): key for key in keys}
    for batch in _batches(names):
        if len(batch) == 1:
            _delete_one(bucket, *batch.popitem())
        else:
            _delete_batch(bucket, batch)


def _batches(names: dict[str, str]) -> Iterator[dict[str, str]]:
    every = list(names.items())
    for start in range(0, len(every), BATCH_KEYS):
        yield dict(every[start : start + BATCH_KEYS])


def _delete_one(bucket: S3Bucket, name: str, key: str) -> None:
    with Translated(bucket.call("delete", key, writes=True)):
        bucket.client.delete_object(Bucket=bucket.bucket_name, Key=name, **bucket.parameters.every)


def _delete_batch(bucket: S3Bucket, batch: dict[str, str]) -> None:
    """Remove up to a thousand. An answer that leaves a key out is no success for that key."""
    call = bucket.call("delete", writes=True)
    with Translated(call):
        answer = bucket.client.delete_objects(
            Bucket=bucket.bucket_name,
            Delete={"Objects": [{"Key": name} for name in batch], "Quiet": False},
            **bucket.parameters.every,
        )
    left = set(batch) - {str(item.get("Key")) for item in answer.get("Deleted", ())}
    for item in answer.get("Errors", ()):
        name, code = str(item.get("Key", "")), str(item.get("Code", ""))
        if code != "NoSuchKey":
            raise translate_code(code, 0, bucket.call("delete", batch.get(name), writes=True))
        left.discard(name)
    if left:
        raise call.unanswered(f"the answer says nothing of {len(left)} of {len(batch)} keys")


SINGLE_PUT_BYTES = 64 * 1024 * 1024
COPY_WHOLE_BYTES = 5 * 1024**3


class S3Store(ObjectStore):
    """A prefix of an S3 bucket. Every verb is one request, except where said.

    The sizes above which a put and a copy go in parts are parameters only for tests.
    """

    def __init__(
        self,
        settings: S3Settings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        single_put_bytes: int = SINGLE_PUT_BYTES,
        copy_whole_bytes: int = COPY_WHOLE_BYTES,
    ) -> None:
        self.url = f"s3://{settings.bucket}/{settings.prefix}".rstrip("/")
        self._bucket = S3Bucket(settings, clock)
        self._single_put_bytes = single_put_bytes
        self._lister = S3Lister(self._bucket)
        self._copier = S3Copier(
            self._bucket,
            whole_bytes=copy_whole_bytes,
            through_bytes=min(single_put_bytes, copy_whole_bytes),
        )

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,
    ) -> Version:
        check_conditions(if_absent, if_match)
        call = self._bucket.call(
            "put", key, writes=True, if_absent=if_absent, if_match=if_match is not None
        )
        conditions = put_conditions(call, if_absent, if_match)
        body = UploadBody(data)
        limit = self._single_put_bytes
        if not conditions:
            limit = min(limit, 2 * self._bucket.settings.part_size_bytes)
        if body.size_bytes > limit:
            return put_parts(self._bucket, call, key, body, conditions=conditions, nonce=nonce)
        whole = body.read(0, body.size_bytes)
        return put_single(self._bucket, call, key, whole, conditions=conditions, nonce=nonce)

    def read(self, key: str, *, max_bytes: int | None = None) -> Stored:
        return read_whole(self._bucket, self._bucket.call("read", key), key, max_bytes)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        begin, stop = check_range(start, end)
        call = self._bucket.call("get", key)
        if begin == 0 and stop is None:
            return read_whole(self._bucket, call, key).data
        found = None if stop == begin else read_range(self._bucket, call, key, begin, stop)
        if found is not None:
            return found.data
        # Nothing to send: the range is empty, or begins at the end, or lies beyond it.
        size_bytes = self.head(key).size_bytes
        if begin > size_bytes:
            raise call.invalid(f"the range begins at {begin}, after the end at {size_bytes}")
        return b""

    def stream(self, key: str, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        return stream_chunks(self._bucket, self._bucket.call("stream", key), key, chunk_bytes)

    def head(self, key: str) -> ObjectInfo:
        return self._bucket.head(key)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        return self._lister.list(check_prefix(prefix), start_after)

    def delete(self, keys: Iterable[str]) -> None:
        delete_keys(self._bucket, keys)

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        return self._copier.copy(source_key, target_key, if_absent=if_absent)

    @property
    def server(self) -> str:
        return str(self._bucket.client.meta.endpoint_url)

    def close(self) -> None:
        close_client(self._bucket.settings)
