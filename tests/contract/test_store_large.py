"""Large objects: bounded memory, exact bytes, and nothing left of an upload that failed."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.errors import AlreadyExists, CheckpointError, Conflict, NotFound
from pyspark_checkpoint.store.base import ObjectStore
from tests.conftest import CLOUDS, fresh_place
from tests.support.servers.s3 import S3Server

MIB = 1024 * 1024
SMALL_PARTS = {"partSizeBytes": str(5 * MIB)}


def write_large(path: Path, size_bytes: int) -> str:
    """Write a file whose every block differs; return its SHA-256."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for index in range(size_bytes // MIB):
            block = hashlib.sha256(index.to_bytes(8, "big")).digest() * (MIB // 32)
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def measure(place_url: str, options: dict[str, str], file: Path) -> dict[str, Any]:
    """Put and stream a file in a process of its own."""
    task = json.dumps({"url": place_url, "options": options, "file": str(file)})
    argv = [sys.executable, "-m", "tests.contract.memory_use", task]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=900, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["file", *CLOUDS])
def test_a_large_object_needs_little_memory(
    request: pytest.FixtureRequest, scheme: str, tmp_path: Path
) -> None:
    """200 MiB go up and come down in at most 80 MiB more than a small object needs."""
    place = fresh_place(request, scheme, tmp_path)
    digest = write_large(tmp_path / "large", 200 * MIB)
    measured = measure(place.url, {**place.options, **SMALL_PARTS}, tmp_path / "large")
    assert measured["size_bytes"] == 200 * MIB
    assert measured["sha256"] == digest
    assert measured["put_bytes"] <= 80 * MIB, measured
    assert measured["stream_bytes"] <= 80 * MIB, measured
    place.open().delete(["large"])


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["file", pytest.param("s3", marks=pytest.mark.soak)])
def test_a_gibibyte_needs_at_most_200_mebibytes(
    request: pytest.FixtureRequest, scheme: str, tmp_path: Path
) -> None:
    """1 GiB with the default part size."""
    place = fresh_place(request, scheme, tmp_path)
    digest = write_large(tmp_path / "large", 1024 * MIB)
    measured = measure(place.url, place.options, tmp_path / "large")
    assert measured["sha256"] == digest
    assert measured["put_bytes"] <= 200 * MIB, measured
    assert measured["stream_bytes"] <= 200 * MIB, measured
    place.open().delete(["large"])


def test_conditions_hold_for_large_objects_too(store: ObjectStore) -> None:
    """An upload in parts is refused like a small one when its key is taken or changed."""
    large = b"0123456789abcdef" * (40 * MIB // 16)
    first = store.put("k", large, if_absent=True)
    assert store.head("k").size_bytes == len(large)
    assert store.get("k", start=len(large) - 16) == b"0123456789abcdef"
    with pytest.raises(AlreadyExists):
        store.put("k", bytes(40 * MIB), if_absent=True)
    assert store.get("k", start=20 * MIB, end=20 * MIB + 4) == b"0123"
    store.put("k", b"small", if_match=first)
    with pytest.raises(Conflict):
        store.put("k", large, if_match=first)
    assert store.get("k") == b"small"


class BrokenFile(io.RawIOBase):
    """A file on a disk that fails in the middle."""

    def __init__(self, size_bytes: int, breaks_at: int) -> None:
        self._size_bytes = size_bytes
        self._breaks_at = breaks_at
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        wanted = self._size_bytes - self._at if size < 0 else min(size, self._size_bytes - self._at)
        if self._at + wanted > self._breaks_at:
            raise OSError(5, "Input/output error")
        self._at += wanted
        return b"x" * wanted


@pytest.mark.parametrize("size_bytes", [100_000, 40 * MIB])
def test_a_put_whose_body_breaks_leaves_nothing(store: ObjectStore, size_bytes: int) -> None:
    """The error is one of ours, the key is absent, or what it was before."""
    store.put("kept", b"before")
    for key in ("fresh", "kept"):
        with pytest.raises(CheckpointError):
            store.put(key, BrokenFile(size_bytes, size_bytes // 2))  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        store.head("fresh")
    assert store.get("kept") == b"before"
    assert [info.key for info in store.list()] == ["kept"]


def test_a_broken_upload_leaves_no_parts_on_s3(s3_server: S3Server, request: pytest.FixtureRequest) -> None:
    """After a failure, and after a refused condition, no multipart upload is open on the server."""
    place = fresh_place(request, "s3", Path())
    store = place.open(**SMALL_PARTS)
    with pytest.raises(CheckpointError):
        store.put("k", BrokenFile(40 * MIB, 30 * MIB))  # type: ignore[arg-type]
    store.put("k", b"taken")
    with pytest.raises(AlreadyExists):
        store.put("k", bytes(40 * MIB), if_absent=True)
    client = s3_server.client()
    prefix = place.url.removeprefix(f"s3://{s3_server.bucket}/")
    assert "Uploads" not in client.list_multipart_uploads(Bucket=s3_server.bucket, Prefix=prefix)
    client.close()
    store.close()


def test_a_broken_put_leaves_no_file_on_disk(tmp_path: Path) -> None:
    """The reserved directory of a local store is empty after a failure."""
    from pyspark_checkpoint import open_object_store

    store = open_object_store(str(tmp_path / "store"))
    with pytest.raises(CheckpointError):
        store.put("a/b", BrokenFile(40 * MIB, 30 * MIB))  # type: ignore[arg-type]
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
