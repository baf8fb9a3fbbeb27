"""Amazon S3 and servers that speak its language: ``s3://``. A version is an object's ETag.

Conditions are ``If-None-Match: *`` and ``If-Match``; the nonce is kept as metadata ``ckpt-nonce``;
uploads carry a CRC32 that the server verifies, and whole reads are checked against the one that the
server gives back, if it does.

Bodies of up to 64 MiB go up in one PutObject, whose condition every server that passes the probe
decides atomically. Larger ones go up in parts, and the condition is decided when these are completed:
atomically by Amazon S3, while SeaweedFS lets two such uploads both win. Before a large conditional
upload the key is looked at, so that most of what must fail fails early."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.store.base import Body, ObjectInfo, Version, check_prefix
from pyspark_checkpoint.store.body import UploadBody
from pyspark_checkpoint.store.ranged import RangedStore
from pyspark_checkpoint.store.remote import Call
from pyspark_checkpoint.store.s3.s3_client import S3Bucket, checked_etag, close_client
from pyspark_checkpoint.store.s3.s3_errors import translate_code, translated
from pyspark_checkpoint.store.s3.s3_transfer import S3Copier, S3Reader, put_parts, put_single, put_target
from pyspark_checkpoint.store.settings import S3Settings

_ORDERED_SERVERS = ("AmazonS3", "MinIO")
_DIRECTORY_BUCKET = "--x-s3"


class S3Lister:
    """Lists the objects below the store's prefix."""

    def __init__(self, bucket: S3Bucket, below: str) -> None:
        self._bucket = bucket
        self._below = below
        self._is_ordered: bool | None = True if bucket.settings.endpoint is None else None
        if bucket.settings.bucket.endswith(_DIRECTORY_BUCKET):
            self._is_ordered = False

    def list(self, call: Call, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """Yield what begins with ``prefix`` and comes after ``start_after``."""
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
        with translated(call):
            page: dict[str, Any] = self._bucket.client.list_objects_v2(**request)
        if "IsTruncated" not in page:
            raise call.unanswered("the answer was cut short")
        return page

    def _request(self, prefix: str, start_after: str | None) -> dict[str, str]:
        request = {
            "Bucket": self._bucket.bucket_name,
            "Prefix": self._below + prefix,
            **self._bucket.parameters.every,
        }
        if start_after is not None:
            request["StartAfter"] = self._below + start_after
        return request

    def _info(self, item: dict[str, Any], call: Call) -> ObjectInfo:
        return ObjectInfo(
            key=item["Key"][len(self._below) :],
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


def delete_names(bucket: S3Bucket, call: Call, names: Mapping[str, str]) -> None:
    """Remove objects by name, each with its key for errors; absent ones are fine."""
    every = list(names.items())
    for start in range(0, len(every), BATCH_KEYS):
        batch = dict(every[start : start + BATCH_KEYS])
        if len(batch) == 1:
            ((name, key),) = batch.items()
            with translated(replace(call, key=key)):
                bucket.client.delete_object(**bucket.address(name), **bucket.parameters.every)
        else:
            _delete_batch(bucket, call, batch)


def _delete_batch(bucket: S3Bucket, call: Call, batch: Mapping[str, str]) -> None:
    """Remove up to a thousand. An answer that leaves a key out is no success for that key."""
    with translated(call):
        answer = bucket.client.delete_objects(
            Bucket=bucket.bucket_name,
            Delete={"Objects": [{"Key": name} for name in batch], "Quiet": False},
            **bucket.parameters.every,
        )
    left = set(batch) - {str(item.get("Key")) for item in answer.get("Deleted", ())}
    for item in answer.get("Errors", ()):
        name, code = str(item.get("Key", "")), str(item.get("Code", ""))
        if code != "NoSuchKey":
            raise translate_code(code, 0, replace(call, key=batch.get(name)))
        left.discard(name)
    if left:
        raise call.unanswered(f"the answer says nothing of {len(left)} of {len(batch)} keys")


SINGLE_PUT_BYTES = 64 * 1024 * 1024
COPY_WHOLE_BYTES = 5 * 1024**3


class S3Store(RangedStore):
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
        self._bucket = S3Bucket(settings, clock)
        super().__init__("s3", settings.bucket, settings.prefix, S3Reader(self._bucket))
        self._single_put_bytes = single_put_bytes
        self._lister = S3Lister(self._bucket, self._below)
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
        call, name = self._put_call(key, if_absent, if_match), self._name(key)
        target = put_target(self._bucket, call, name, if_match, nonce)
        body = UploadBody(data)
        limit = self._single_put_bytes
        if not target.conditions:
            limit = min(limit, 2 * self._bucket.settings.part_size_bytes)
        if body.size_bytes > limit:
            return put_parts(target, body)
        return put_single(target, body.read(0, body.size_bytes))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        return self._lister.list(self._call("list", prefix or None), check_prefix(prefix), start_after)

    def delete(self, keys: Iterable[str]) -> None:
        names = {self._name(key): key for key in keys}
        delete_names(self._bucket, self._call("delete", writes=True), names)

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        source, target = self._name(source_key), self._name(target_key)
        call = Call(self._where, "copy", target_key, writes=True, if_absent=if_absent)
        reading = self._call("copy", source_key)
        return self._copier.copy(reading, source, put_target(self._bucket, call, target))

    @property
    def server(self) -> str:
        return str(self._bucket.client.meta.endpoint_url)

    def close(self) -> None:
        close_client(self._bucket.settings)
