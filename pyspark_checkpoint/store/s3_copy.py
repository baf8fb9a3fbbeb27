"""Copying by the S3 server, also on condition that the target is absent.

A server that does not know conditional copies ignores the condition and overwrites. So the first such
copy of a store goes through here, as a read and a conditional put, and is then asked of the server
once more: only a server that refuses the second one is trusted with conditional copies from then on.
"""

from __future__ import annotations

from pyspark_checkpoint.errors import AlreadyExists, Conflict, NotFound, StoreError
from pyspark_checkpoint.store.base import ObjectInfo, Version
from pyspark_checkpoint.store.s3_bucket import S3Bucket, checked_etag
from pyspark_checkpoint.store.s3_errors import Translated
from pyspark_checkpoint.store.s3_multipart import PartsTarget, copy_parts
from pyspark_checkpoint.store.s3_read import read_whole
from pyspark_checkpoint.store.s3_write import put_single

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
