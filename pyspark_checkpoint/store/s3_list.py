"""Listing an S3 bucket in the order of the keys' bytes, whatever order the server has.

Amazon S3 and MinIO list in that order, and pages are fetched as the caller advances. Others go by
directory (SeaweedFS, rclone, and S3's own directory buckets): they list ``a/x`` before ``a-b``, and
leave keys out when asked to begin in the middle. Theirs is read whole and sorted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark_checkpoint.store.base import ObjectInfo, Version
from pyspark_checkpoint.store.call import Call
from pyspark_checkpoint.store.s3_bucket import S3Bucket, checked_etag
from pyspark_checkpoint.store.s3_errors import Translated

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
