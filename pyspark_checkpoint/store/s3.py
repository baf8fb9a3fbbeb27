"""Amazon S3 and servers that speak its language: ``s3://``. A version is an object's ETag.

Conditions are ``If-None-Match: *`` and ``If-Match``; the nonce is kept as metadata ``ckpt-nonce``;
uploads carry a CRC32 that the server verifies, and whole reads are checked against the one that the
server gives back, if it does.

Bodies of up to 64 MiB go up in one PutObject, whose condition every server that passes the probe
decides atomically. Larger ones go up in parts, and the condition is decided when these are completed:
atomically by Amazon S3, while SeaweedFS lets two such uploads both win. Before a large conditional
upload the key is looked at, so that most of what must fail fails early.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
from pyspark_checkpoint.store.s3_bucket import S3Bucket
from pyspark_checkpoint.store.s3_client import close_client
from pyspark_checkpoint.store.s3_copy import S3Copier
from pyspark_checkpoint.store.s3_delete import delete_keys
from pyspark_checkpoint.store.s3_list import S3Lister
from pyspark_checkpoint.store.s3_read import read_range, read_whole, stream_chunks
from pyspark_checkpoint.store.s3_write import put_conditions, put_parts, put_single
from pyspark_checkpoint.store.settings import S3Settings
from pyspark_checkpoint.store.upload_body import UploadBody

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
