"""Checkpoint locations on HDFS and every other Hadoop file system, as an object store that needs a driver.

Small files pass through the gateway to the JVM; larger ones by way of a local file that the JVM copies, so
that their bytes never become text. Not a store for checkpoints: it has no conditional writes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pyspark.sql import SparkSession

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import Invalid, NotFound
from pyspark_checkpoint.spark.jvm import HadoopFiles
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.base import (
    CHUNK_BYTES,
    Body,
    ObjectInfo,
    ObjectStore,
    Stored,
    Version,
    check_conditions,
    check_key,
    check_prefix,
    check_range,
)
from pyspark_checkpoint.store.body import body_bytes, body_chunks
from pyspark_checkpoint.store.remote import Call

_SMALL_BYTES = 64 * 1024


def location_spec(spark: SparkSession, url: str, options: Mapping[str, str]) -> LocationSpec:
    """A checkpoint location that may be on any file system that ``spark`` reaches."""
    return LocationSpec(url, options, opener=lambda place: HadoopStore(HadoopFiles(spark), place))


class HadoopStore(ObjectStore):
    """One directory of a Hadoop file system. Files are replaced by renaming: whole, or not at all."""

    def __init__(self, files: HadoopFiles, url: str) -> None:
        self.url = url.rstrip("/")
        self._files = files

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,  # noqa: ARG002 - kept by no file system
    ) -> Version:
        """Write a file. ``if_absent`` is for small ones; there is no compare-and-swap."""
        check_conditions(if_absent, if_match)
        if if_match is not None:
            raise Invalid(
                "Hadoop's file systems cannot compare and swap",
                key=key,
                hint="keep checkpoints on S3, GCS, Azure or a local disk",
            )
        where = self._url(key)
        if if_absent:
            self._files.create(where, body_bytes(data))
            return self.head(key).version
        with tempfile.TemporaryDirectory(prefix="ckpt-") as directory:
            local = Path(directory, "file")
            with local.open("wb") as file:
                for chunk in body_chunks(data):
                    file.write(chunk)
            folder, _, name = where.rpartition("/")
            self._files.store(str(local), f"{folder}/.{name}.{SYSTEM_CLOCK.uuid7()}.tmp", where)
        return self.head(key).version

    def read(self, key: str, *, max_bytes: int | None = None) -> Stored:
        """The whole file; not proof against one that is written meanwhile."""
        found = self.head(key)
        if max_bytes is not None and found.size_bytes > max_bytes:
            raise Call(self.url, "read", key).too_large(found.size_bytes, max_bytes)
        return Stored(self.get(key), found.version)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        """Bytes of a file."""
        begin, stop = check_range(start, end)
        where = self._url(key)
        size_bytes, _ = self._files.facts(where)
        if begin > size_bytes:
            raise Invalid(
                f"{key} is shorter than {begin}", key=key, hint="list it once more: it has changed"
            )
        stop = size_bytes if stop is None else min(stop, size_bytes)
        if stop - begin <= _SMALL_BYTES:
            return self._files.read(where, begin, stop - begin) if stop > begin else b""
        with self._fetched(where) as file:
            file.seek(begin)
            return file.read(stop - begin)

    def stream(self, key: str, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The whole file in chunks."""
        with self._fetched(self._url(key)) as file:
            while chunk := file.read(chunk_bytes):
                yield chunk

    @contextmanager
    def _fetched(self, url: str) -> Iterator[IO[bytes]]:
        """A file on the local disk, for the length of a block."""
        with tempfile.TemporaryDirectory(prefix="ckpt-") as directory:
            local = Path(directory, "file")
            self._files.fetch(url, str(local))
            with local.open("rb") as file:
                yield file

    def head(self, key: str) -> ObjectInfo:
        """A file's size and time."""
        return _info(key, *self._files.facts(self._url(key)))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Every file whose path begins with ``prefix``; hidden ones are Hadoop's own."""
        check_prefix(prefix)
        below = prefix[: prefix.rfind("/") + 1]  # the only directory that has such files
        try:
            found = sorted(self._files.walk(f"{self.url}/{below}"))
        except NotFound:
            return
        for name, size_bytes, modified_ms in found:
            key = f"{below}{name}"
            if key.startswith(prefix) and (start_after is None or key > start_after):
                yield _info(key, size_bytes, modified_ms)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove files."""
        for key in keys:
            self._files.delete(self._url(key))

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        """Copy through the driver."""
        return self.put(target_key, self.get(source_key), if_absent=if_absent)

    def rename_directory(self, source_url: str, target_url: str) -> None:
        """Rename a whole location; refuse a target that exists."""
        self._files.rename(source_url, target_url)

    def _url(self, key: str) -> str:
        return f"{self.url}/{check_key(key)}"


def _info(key: str, size_bytes: int, modified_ms: int) -> ObjectInfo:
    return ObjectInfo(key, size_bytes, Version(f"{modified_ms}-{size_bytes}"), modified_ms)
