"""Large files that store and location keep in one bucket are copied by the server, digests and all."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyspark_checkpoint.capture import upload as uploading
from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.capture.upload import find_server_copier
from pyspark_checkpoint.errors import Denied
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.spark_files.location import FileGone, LocationSpec
from pyspark_checkpoint.store.base import Version
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.open import open_object_store
from tests.conftest import Place
from tests.support.made_location import MadeLocation, contents, needed
from tests.support.servers.launch import S3Server

LARGE = 300_000


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeLocation:
    monkeypatch.setattr(uploading, "COPY_BYTES", LARGE)
    return MadeLocation(tmp_path / "location", state_bytes=LARGE).commit(0, 1)


def moved(made: MadeLocation, url: str, options: dict[str, str]) -> LocationSpec:
    """A location made by hand, in a bucket."""
    store = open_object_store(url, options)
    for name, data in contents(made.path).items():
        store.put(name, data)
    return LocationSpec(url, options)


def captured(
    made: MadeLocation, spec: LocationSpec, url: str, options: dict[str, str]
) -> CheckpointManifest:
    """The newest epoch of a location, captured with whatever can copy."""
    info = QueryInfo(id=made.query_id, checkpoint_location=spec.url)
    history = CheckpointStore.open(url, options, query=info)
    run = history.writer()
    run.claim()
    copier = find_server_copier(spec, url, options)
    facts = QueryFacts(info, history.run_id, (), "test", "update")
    manifest = QueryCapture(spec.open(), run, facts, None, copier).capture()
    assert manifest is not None
    return manifest


def check(made: MadeLocation, at: Place, tmp_path: Path) -> None:
    """Capture where one server has both, and restore."""
    spec = moved(made, f"{at.url}/location", at.options)
    manifest = captured(made, spec, f"{at.url}/store", at.options)
    assert manifest.requests.bytes < LARGE, "no state was uploaded"
    assert manifest.total_size_bytes > 4 * LARGE
    assert list(CheckpointStore.open(f"{at.url}/store", at.options).verify()) == []
    restore(f"{at.url}/store", str(tmp_path / "fresh"), options=at.options)
    assert contents(tmp_path / "fresh") == needed(made, 1)


def test_large_files_are_copied_where_the_server_has_them(made: MadeLocation, tmp_path: Path) -> None:
    """What is recorded are the digests of the copies, and they restore to the very bytes."""
    check(made, Place("memory", "memory://server-copy"), tmp_path)


def test_s3_copies_within_a_bucket(made: MadeLocation, s3_server: S3Server, tmp_path: Path) -> None:
    """Under Spark's name for the location and ours for the store."""
    check(made, Place("s3", s3_server.url("server-copy"), s3_server.options), tmp_path)
    here = s3_server.url("x").replace("s3://", "s3a://")
    assert find_server_copier(LocationSpec(here, s3_server.options), s3_server.url("y"), s3_server.options)


def test_a_file_that_is_gone_or_has_changed_is_not_copied(made: MadeLocation) -> None:
    """Spark purges and rewrites: the capture begins again with a new listing."""
    spec = moved(made, "memory://server-copy-gone/location", {})
    copier = find_server_copier(spec, "memory://server-copy-gone/store", {})
    assert copier is not None
    with pytest.raises(FileGone):
        copier.copy("state/0/0/99.delta", "checkpoints/x")


def test_a_location_that_the_stores_credentials_may_not_read_is_uploaded(
    made: MadeLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One bucket, two owners: the server copies nothing, so the bytes pass through here; said once."""
    asked: list[str] = []

    def denied(self: MemoryStore, source_key: str, target_key: str, **conditions: bool) -> Version:
        asked.append(source_key)
        raise Denied("not yours", key=source_key)

    monkeypatch.setattr(MemoryStore, "copy", denied)
    url = "memory://server-copy-denied"
    spec = moved(made, f"{url}/location", {})
    with caplog.at_level(logging.WARNING):
        manifest = captured(made, spec, f"{url}/store", {})
    assert manifest.requests.bytes > 4 * LARGE
    assert list(CheckpointStore.open(f"{url}/store").verify()) == []
    assert [record.message for record in caplog.records if "server-copy-denied" in record.message] == [
        f"{url} refuses to copy from the checkpoint location with the store's credentials: large files are "
        "uploaded instead. Let these credentials read location/, and start again"
    ]
    asked.clear()
    made.commit(2)
    spec = moved(made, f"{url}/location", {})
    assert captured(made, spec, f"{url}/store", {}).epoch == 2
    assert asked == [], "it is known by now"
    restore(f"{url}/store", str(tmp_path / "fresh"))
    assert contents(tmp_path / "fresh") == needed(made, 2)


def test_two_services_two_buckets_and_disks_copy_nothing() -> None:
    """Only one server that has both can copy."""
    options = {"endpoint": "http://127.0.0.1:1", "accessKey": "a", "secretKey": "b"}
    here = LocationSpec("s3a://bucket/location", options)
    assert find_server_copier(here, "s3://other/store", options) is None
    assert (
        find_server_copier(here, "s3://bucket/store", {**options, "endpoint": "http://127.0.0.1:2"}) is None
    )
    assert find_server_copier(LocationSpec("/disk/location"), "/disk/store", {}) is None
    assert find_server_copier(LocationSpec("hdfs://host/location"), "s3://bucket/store", options) is None
    assert uploading.COPY_BYTES >= 1024 * 1024
