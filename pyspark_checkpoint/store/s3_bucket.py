"""One prefix of one bucket: how its keys are named, how it is asked, and what is known of an object."""

from __future__ import annotations

from typing import Any

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import Denied, NotFound
from pyspark_checkpoint.store.base import ObjectInfo, Version, check_key
from pyspark_checkpoint.store.call import Call
from pyspark_checkpoint.store.s3_client import client_for
from pyspark_checkpoint.store.s3_errors import Translated, missing_bucket
from pyspark_checkpoint.store.settings import S3Settings

NONCE_FIELD = "ckpt-nonce"


class S3Bucket:
    """What every verb of an S3 store needs."""

    def __init__(self, settings: S3Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.where = f"s3://{settings.bucket}"
        self.prefix = f"{settings.prefix}/" if settings.prefix else ""
        self._is_there = False

    @property
    def client(self) -> Any:
        """This process's client."""
        return client_for(self.settings)

    def name(self, key: str) -> str:
        """The object's name in the bucket; ``Invalid`` for what is no key."""
        return self.prefix + check_key(key)

    def address(self, key: str) -> dict[str, str]:
        """The parameters that name an object."""
        return {"Bucket": self.settings.bucket, "Key": self.name(key)}

    def call(
        self,
        verb: str,
        key: str | None = None,
        *,
        writes: bool = False,
        if_absent: bool = False,
        if_match: bool = False,
    ) -> Call:
        """Say what is asked, for errors."""
        return Call(self.where, verb, key, writes=writes, if_absent=if_absent, if_match=if_match)

    def head(self, key: str) -> ObjectInfo:
        """Return what is known of ``key``, or raise ``NotFound``. A first absent key costs two requests."""
        call = self.call("head", key)
        try:
            with Translated(call):
                answer = self.client.head_object(**self.address(key))
        except NotFound:
            self._prove_bucket(call)
            raise
        size, modified = answer.get("ContentLength"), answer.get("LastModified")
        if size is None or modified is None or modified.tzinfo is None:
            raise call.unanswered("the answer was cut short")
        self._is_there = True
        return ObjectInfo(
            key=key,
            size_bytes=size,
            version=Version(checked_etag(answer.get("ETag"), call)),
            modified_ms=int(modified.timestamp() * 1000),
            nonce=answer.get("Metadata", {}).get(NONCE_FIELD),
        )

    def _prove_bucket(self, call: Call) -> None:
        """Make sure, once, that it is the key which is absent: the answer to a HEAD does not say."""
        if self._is_there:
            return
        try:
            with Translated(call):
                self.client.head_bucket(Bucket=self.settings.bucket)
        except NotFound:
            raise missing_bucket(call) from None
        except Denied:
            pass  # to look at it is forbidden, so it exists
        self._is_there = True


def checked_etag(value: object, call: Call) -> str:
    """Return an ETag in its quotes, which some servers forget in some answers.

    One that is missing, or has a quote at one end only, means that the answer was cut short.
    """
    if not isinstance(value, str) or not value or value.count('"') not in (0, 2):
        raise call.unanswered("the answer was cut short")
    return value if '"' in value else f'"{value}"'
