"""A checkpoint location of Spark, seen through an object store: one way for disk, S3, GCS and Azure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_checkpoint.errors import NotFound, RefusedError
from pyspark_checkpoint.sparkstate.chain import FileFacts
from pyspark_checkpoint.sparkstate.directory import CheckpointListing, sort_listing
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.store.url import SCHEMES, parse_store_url

_SPARK_SCHEMES = {"s3": "s3a", "s3n": "s3a", "gcs": "gs"}


class FileGone(RefusedError):
    """A file that was listed is gone, or is another one: Spark purged or rewrote it. List again."""


@dataclass(frozen=True, slots=True)
class LocationSpec:
    """How to open a checkpoint location anywhere: what a task is told. Options are never printed."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def spark_url(self) -> str:
        """The location as Spark spells it: what Spark finds in files that name their own place."""
        where = parse_store_url(self.url)
        if where.scheme == "file":
            return f"file:{where.path}"
        typed, colon, rest = self.url.rstrip("/").partition(":")
        return f"{_SPARK_SCHEMES.get(typed.lower(), typed)}{colon}{rest}"

    def open(self) -> CheckpointLocation:
        """Open it."""
        scheme, colon, _ = self.url.partition(":")
        if colon and "/" not in scheme and scheme.lower() not in SCHEMES:
            raise RefusedError(
                f"checkpoint locations on {scheme}: are not read",
                hint="local disk, S3, GCS and Azure are, under the names that Spark has for them",
            )
        return CheckpointLocation(self, open_object_store(self.url, self.options))


class CheckpointLocation:
    """The files of one query's checkpoint location, by their paths relative to it."""

    def __init__(self, spec: LocationSpec, store: ObjectStore) -> None:
        self.url = spec.url
        self.spark_url = spec.spark_url
        self.store = store

    def listing(self) -> CheckpointListing:
        """Everything that is there now."""
        return sort_listing(
            {
                found.key: FileFacts(found.size_bytes, found.modified_ms)
                for found in self.store.list()
                if not found.key.rsplit("/", 1)[-1].startswith(".")
            }
        )

    def read(self, path: str, facts: FileFacts | None = None) -> bytes:
        """A file's bytes; with ``facts`` only if it is still of that size."""
        try:
            data = self.store.get(path)
        except NotFound:
            raise FileGone(f"{path} is gone from the checkpoint location") from None
        if facts is not None and len(data) != facts.size_bytes:
            raise FileGone(f"{path} was written again")
        return data
