"""What the executors do: large restores, and uploads and restores on Hadoop's own file systems."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pyspark_checkpoint import preflight, restore
from pyspark_checkpoint.capture import upload_plan as uploads
from pyspark_checkpoint.capture.upload import UploadedGroup, UploadTarget
from pyspark_checkpoint.capture.upload_plan import UploadItem
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import AlreadyExists, FormatError, NotFound, RefusedError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.registry.queries import list_queries, root_url
from pyspark_checkpoint.restorer import execute as restoring
from pyspark_checkpoint.spark.hadoop_store import location_spec
from pyspark_checkpoint.spark.jobs import HadoopUploader
from pyspark_checkpoint.spark_files.location import FileGone, LocationSpec
from pyspark_checkpoint.store.open import open_object_store
from tests.integration.listener.lab import Lab
from tests.integration.listener.test_listener import listening
from tests.restorer.test_restore_rules import damage
from tests.support.drivers.queries import HDFS, ROCKSDB_CHANGELOG
from tests.support.made_location import MadeLocation, capture, contents, needed, open_capture
from tests.support.servers.hadoop import ROOT


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as large, and a task gets one file."""
    monkeypatch.setattr(restoring, "SPREAD_BYTES", 1)
    monkeypatch.setattr(restoring, "GROUP_BYTES", 1)
    monkeypatch.setattr(uploads.plan_uploads, "__kwdefaults__", {"group_bytes": 200})


@pytest.mark.usefixtures("large")
def test_a_large_restore_runs_on_the_executors_and_every_byte_is_right(lab: Lab) -> None:
    """State is written by tasks, the rest by the driver; a damaged checkpoint is noticed in a task."""
    made, url = MadeLocation(lab.directory / "made").commit(0, 1, 2), str(lab.directory / "store")
    _, second, third = capture(made, url, 0, 1, 2)
    tracker = lab.spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup(None))
    restore(url, str(lab.directory / "fresh"), clone=False, spark=lab.spark)
    assert len(tracker.getJobIdsForGroup(None)) == before + 1
    assert contents(lab.directory / "fresh") == needed(made, 2)
    damage(url, third, "flip")
    with pytest.raises(FormatError):
        restore(url, str(lab.directory / "bad"), at=third.checkpoint_id, clone=True, spark=lab.spark)
    assert restore(url, str(lab.directory / "good"), spark=lab.spark).epoch == second.epoch
    assert contents(lab.directory / "good") == needed(made, 1)


@pytest.fixture
def mounted(lab: Lab) -> Iterator[str]:
    """A Hadoop file system that only Hadoop knows: a mount table over a directory."""
    name, target = f"lab-{SYSTEM_CLOCK.uuid7()}", lab.directory / "mounted"
    target.mkdir()
    lab.spark.conf.set(f"fs.viewfs.mounttable.{name}.link./data", f"file:{target}")
    yield f"viewfs://{name}/data"
    lab.spark.conf.unset(f"fs.viewfs.mounttable.{name}.link./data")


def test_a_hadoop_file_system_keeps_what_a_location_needs(lab: Lab, mounted: str) -> None:
    """Files of all sizes come back as they were; what is absent is absent; what is there is not created."""
    store = location_spec(lab.spark, f"{mounted}/a location", {}).open().store
    assert list(store.list()) == []
    bodies = {"offsets/0": b"small", "state/0/0/1.delta": bytes(range(256)) * 1000, "state/empty": b""}
    for key, data in bodies.items():
        store.put(key, data)
        store.put(key, data)
    assert {info.key: info.size_bytes for info in store.list()} == {k: len(v) for k, v in bodies.items()}
    assert [info.key for info in store.list("state/0/")] == ["state/0/0/1.delta"]
    for key, data in bodies.items():
        assert store.get(key) == data
        assert b"".join(store.stream(key)) == data
    assert store.get("state/0/0/1.delta", start=255, end=258) == b"\xff\x00\x01"
    with pytest.raises(AlreadyExists):
        store.put("offsets/0", b"other", if_absent=True)
    store.delete(["offsets/0", "never/there"])
    with pytest.raises(NotFound):
        store.get("offsets/0")


@pytest.mark.usefixtures("large")
def test_a_location_on_a_hadoop_file_system_is_captured_and_restored(lab: Lab, mounted: str) -> None:
    """The listener captures it, executors upload its state; restored to such a place the query goes on."""
    location, url = f"{mounted}/location", str(lab.directory / "store")
    with listening(lab.spark, url) as listener:
        undisturbed = lab.run("aggregation", location, ROCKSDB_CHANGELOG)
        assert listener.flush(120), listener.statuses
    newest = max(undisturbed)
    (status,) = listener.statuses
    assert (status.captured_epoch, status.failures) == (newest, 0)
    spec = location_spec(lab.spark, location, {})
    lab.capture(spec, lab.directory / "early", [4])
    with pytest.raises(RefusedError, match="spark="):
        restore(str(lab.directory / "early"), f"{mounted}/fresh")
    restore(str(lab.directory / "early"), f"{mounted}/fresh", clone=True, spark=lab.spark)
    found = lab.run("aggregation", f"{mounted}/fresh", HDFS)
    assert found == {batch: rows for batch, rows in undisturbed.items() if batch > 4}
    assert preflight(location_spec(lab.spark, f"{mounted}/fresh", {}), partitions=2) == ()
    restore(url, str(lab.directory / "disk"), clone=True)
    assert (lab.directory / "disk" / "commits" / str(newest)).exists()
    (query,) = list_queries(open_object_store(url))
    history = CheckpointStore.open(root_url(url, query.query_id))
    manifest = history.load_latest()
    assert manifest is not None
    assert all(
        ref.path
        for operator in manifest.operators.values()
        for part in operator.partitions
        for ref in part.artifacts
    ), "what the driver uploads of so little is inline"
    assert list(history.verify()) == []


@pytest.mark.usefixtures("large")
def test_a_file_purged_from_a_hadoop_location_starts_the_capture_over(lab: Lab, mounted: str) -> None:
    """Spark purges while its own job reads: the capture begins anew, and is no failure."""
    made, url = (
        MadeLocation(lab.directory / "mounted" / "location").commit(0, 1),
        str(lab.directory / "store"),
    )
    location = location_spec(lab.spark, f"{mounted}/location", {})
    real = HadoopUploader(lab.spark, location, url, {})
    gone: list[str] = []

    def purged_once(groups: Sequence[tuple[UploadItem, ...]], target: UploadTarget) -> list[UploadedGroup]:
        path, hidden = made.path / "state/0/1/2.delta", lab.directory / "hidden"
        if gone:
            return real(groups, target)
        path.rename(hidden)
        try:
            return real(groups, target)
        except FileGone as error:
            gone.append(str(error))
            raise
        finally:
            hidden.rename(path)

    capturer = open_capture(made, url)
    assert QueryCapture(location.open(), capturer.run, capturer.facts, purged_once).capture(1) is not None
    assert len(gone) == 1
    restore(url, str(lab.directory / "fresh"), clone=False)
    assert contents(lab.directory / "fresh") == needed(made, 1)


def test_a_hadoop_location_needs_a_session(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """The message says what to give."""
    with caplog.at_level(logging.ERROR), pytest.raises(RefusedError, match="spark="):
        LocationSpec("hdfs://host/location").open()


_LAST_CAPTURE = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_checkpoint.capture import upload_plan as uploads
from pyspark_checkpoint.spark.hadoop_store import location_spec
from pyspark_checkpoint.spark.jobs import ExecutorUploader, HadoopUploader
from tests.support.made_location import MadeLocation, open_capture

uploads.plan_uploads.__kwdefaults__["group_bytes"] = 200
home = Path(sys.argv[1])
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(1).count()
for name, kind in (("disk", ExecutorUploader), ("hadoop", HadoopUploader)):
    location, url = home / name, str(home / f"{name}-store")
    made = MadeLocation(location).commit(0, 1)
    uploader = kind(spark, location_spec(spark, str(location), {}), url, {})
    capture = open_capture(made, url, uploader=uploader)
    spark.sparkContext._jsc.sc().stop()
    print("EPOCH", capture.capture().epoch, flush=True)
"""


@pytest.mark.spark
def test_the_driver_uploads_what_a_stopping_spark_cannot(tmp_path: Path) -> None:
    """The last checkpoint of a Spark that stops: it runs no job, whatever the size of the state."""
    done = subprocess.run(
        [sys.executable, "-c", _LAST_CAPTURE, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["EPOCH", "1"] * 2, done.stderr[-3000:]
    for name in ("disk", "hadoop"):
        history = CheckpointStore.open(str(tmp_path / f"{name}-store"))
        assert list(history.verify()) == []
        restore(str(tmp_path / f"{name}-store"), str(tmp_path / f"{name}-fresh"))
        assert contents(tmp_path / f"{name}-fresh") == needed(MadeLocation(tmp_path / name), 1)
