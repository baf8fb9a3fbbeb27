"""The listener on a real session: every query of it, from its start to its end."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_checkpoint import CheckpointListener, checkpoint, restore, savepoint
from pyspark_checkpoint.capture import upload_plan as uploads
from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.errors import RefusedError, SettingsError
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.listener.startup_guard import QueryHold
from pyspark_checkpoint.registry.queries import list_queries, root_url
from pyspark_checkpoint.restorer.plan import RESTORE_MARKER
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec
from pyspark_checkpoint.spark_files.names import parse_state_file
from pyspark_checkpoint.spark_files.versions import FileFacts
from pyspark_checkpoint.store.open import open_object_store
from tests.integration.listener.lab import Lab
from tests.support.drivers.driver import ROOT
from tests.support.drivers.queries import HDFS
from tests.support.made_location import contents
from tests.support.mounts import IN_NAMESPACE, need_namespaces
from tests.support.waiting import wait_until


@contextmanager
def listening(
    spark: SparkSession, url: str, *, hold: QueryHold | None = None, **settings: Any
) -> Iterator[CheckpointListener]:
    """A registered listener, for the length of a block. ``hold`` is the plugin's alone."""
    if hold is None:
        listener = checkpoint(spark, url, **settings)
    else:
        listener = CheckpointListener(spark, url, hold=hold, **settings)
        spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        listener.close(60)


def counted(lab: Lab, location: Path, name: str, result: str = "count(*)") -> StreamingQuery:
    """A query that counts for ever, a batch as often as it can."""
    lab.set_confs(HDFS)
    source = lab.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    frame = source.groupBy((source.value % 7).alias("k")).agg(F.expr(result).alias("result"))
    writer = frame.writeStream.outputMode("update").format("noop").queryName(name)
    return (
        writer.option("checkpointLocation", str(location))
        .trigger(processingTime="300 milliseconds")
        .start()
    )


def wait_for_batch(query: StreamingQuery, batch: int) -> None:
    """Wait until a batch is done."""

    def is_done() -> bool:
        assert query.isActive, query.exception()
        return query.lastProgress is not None and query.lastProgress["batchId"] >= batch

    wait_until(is_done, f"batch {batch}")


def capture_batches(lab: Lab, url: str, location: Path, batch: int) -> StreamingQuery:
    """Run a query with a listener until a batch is captured, and stop it."""
    with listening(lab.spark, url) as listener:
        query = counted(lab, location, "stale")
        wait_for_batch(query, batch)
        assert listener.flush(120), listener.statuses
        query.stop()
    return query


def newest_of(url: str, query: StreamingQuery) -> CheckpointManifest:
    """The newest checkpoint of a query."""
    newest = CheckpointStore.open(root_url(url, str(query.id))).load_latest()
    assert newest is not None
    return newest


@pytest.mark.promise
def test_every_query_of_a_session_is_checkpointed_and_found_by_name(lab: Lab) -> None:
    """Two queries, each with a history of its own; flush makes them durable; both can be restored."""
    url = str(lab.directory / "store")
    with listening(lab.spark, url) as listener:
        queries = {name: counted(lab, lab.directory / name, name) for name in ("first", "second")}
        for query in queries.values():
            wait_for_batch(query, 2)
        assert listener.flush(120), listener.statuses
        assert {status.query_name for status in listener.statuses} == set(queries)
        assert all(status.captures >= 1 and status.failures == 0 for status in listener.statuses)
        for query in queries.values():
            query.stop()
    registered = list_queries(open_object_store(url))
    assert {root.name: root.query_id for root in registered} == {n: str(q.id) for n, q in queries.items()}
    for name, query in queries.items():
        manifest = newest_of(url, query)
        commits = [int(path.name) for path in (lab.directory / name / "commits").glob("[0-9]*")]
        assert manifest.epoch == max(commits), "a query that ended has its last batch captured"
        assert manifest.query.name == name
        assert manifest.query.checkpoint_location.endswith(f"/{name}")
        assert manifest.query.spark_version == lab.spark.version
        assert manifest.query.conf["spark.sql.shuffle.partitions"] == "2"
        assert list(manifest.operators) == ["0-stateStoreSave"]
        assert manifest.source_offsets["source-0"].offsets["offset"]
        assert manifest.source_offsets["source-0"].metadata["description"].startswith("RatePerMicroBatch")
        assert manifest.sink_epochs == {manifest.sink_names[0]: manifest.epoch}
        assert manifest.run_id == str(query.runId)
        savepoint(url, "end", query=name)
        report = restore(url, str(lab.directory / f"{name}-fresh"), at="end", query=name, clone=True)
        assert report.epoch == manifest.epoch


def test_a_closed_listener_captures_nothing_and_another_one_does(lab: Lab) -> None:
    """Closing waits for what a query has committed; Spark calls it no more, and the next one is alive."""
    url = str(lab.directory / "store")
    registered = lab.spark._jsparkSession.streams().listListeners
    before = len(registered())
    listener = checkpoint(lab.spark, url)
    first = counted(lab, lab.directory / "first", "first")
    wait_for_batch(first, 1)
    listener.close(60)
    assert newest_of(url, first).epoch >= 1
    assert len(registered()) == before
    closed = newest_of(url, first)
    wait_for_batch(first, closed.epoch + 2)
    second = counted(lab, lab.directory / "second", "second")
    wait_for_batch(second, 1)
    listener.close()
    assert listener.flush(0) is True
    assert newest_of(url, first) == closed
    assert [root.name for root in list_queries(open_object_store(url))] == ["first"]
    for query in (first, second):
        query.stop()
    with checkpoint(lab.spark, url) as later:
        again = counted(lab, lab.directory / "second", "second")
        wait_for_batch(again, 2)
        assert later.flush(120), later.statuses
        again.stop()
    assert newest_of(url, again).epoch >= 2
    assert len(registered()) == before


def test_a_pipeline_has_one_hash_across_restarts_and_another_when_it_changes(lab: Lab) -> None:
    """The same query on another location hashes alike; another result does not."""
    hashes = []
    for name, result in (("one", "count(*)"), ("two", "count(*)"), ("three", "max(value)")):
        url = str(lab.directory / f"store-{name}")
        with listening(lab.spark, url) as listener:
            query = counted(lab, lab.directory / name, name, result=result)
            wait_for_batch(query, 0)
            assert listener.flush(120)
            query.stop()
        manifest = newest_of(url, query)
        hashes.append(manifest.pipeline_hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_executors_upload_what_is_large_and_old_epochs_go(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a small bound every state file goes up in a task; only `retain` epochs stay, all readable."""
    monkeypatch.setattr(uploads.plan_uploads, "__kwdefaults__", {"group_bytes": 200})
    url = str(lab.directory / "store")
    with listening(lab.spark, url, retain=2) as listener:
        query = counted(lab, lab.directory / "large", "large")
        for batch in range(1, 7):
            wait_for_batch(query, batch)
            assert listener.flush(120), listener.statuses
        query.stop()
    history = CheckpointStore.open(root_url(url, str(query.id)))
    epochs = sorted({epoch for _, epoch in history.list()})
    assert 2 <= len(epochs) <= 3
    assert list(history.verify()) == []
    restore(url, str(lab.directory / "fresh"), clone=True)
    newest = history.load_latest()
    assert newest is not None
    state = newest.operators["0-stateStoreSave"].partitions
    assert all(ref.path for part in state for ref in part.artifacts), (
        "small ones from the driver are inline"
    )


@pytest.mark.promise
def test_a_location_behind_its_history_stops_its_query(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """An old copy of the location comes back: running on would duplicate what was written.

    So does the location itself after its history was rolled back: running on would undo that.
    """
    url, location = str(lab.directory / "store"), lab.directory / "location"
    with listening(lab.spark, url) as listener:
        query = counted(lab, location, "stale")
        wait_for_batch(query, 1)
        assert listener.flush(120)
        wait_for_batch(query, max(3, (listener.statuses[0].captured_epoch or 0) + 1))
        assert listener.flush(120)
        query.stop()
    old = set_back(lab, url, query, lab.directory / "old")
    before = contents(old)
    with caplog.at_level(logging.ERROR), listening(lab.spark, url):
        behind = counted(lab, old, "stale")
        assert behind.awaitTermination(60)
        assert behind.exception() is None
    assert "running on would repeat batches" in caplog.text
    assert contents(old) == before, "it was stopped before it wrote anything"
    history = CheckpointStore.open(root_url(url, str(query.id)))
    history.rollback(min(history.list_ids()))
    with caplog.at_level(logging.ERROR), listening(lab.spark, url):
        assert counted(lab, location, "stale").awaitTermination(60)
    assert "running on would undo that" in caplog.text


def test_a_location_behind_its_history_is_brought_up_to_date_on_request(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """The query goes on after the newest checkpoint; what was there is kept beside it."""
    url, location = str(lab.directory / "store"), lab.directory / "location"
    query = capture_batches(lab, url, location, 3)
    newest = newest_of(url, query)
    old = set_back(lab, url, query, lab.directory / "old")
    before = contents(old)
    with caplog.at_level(logging.WARNING), listening(lab.spark, url, stale="restore") as listener:
        behind = counted(lab, old, "stale")
        wait_for_batch(behind, newest.epoch + 1)
        first = behind.recentProgress[0]["batchId"]
        behind.stop()
        assert listener.flush(120)
    assert first == newest.epoch + 1, "no batch that the history has was run again"
    assert "It was restored at batch" in caplog.text
    (aside,) = lab.directory.glob("old.stale-*")
    assert contents(aside) == before
    assert list(lab.directory.glob("old.restored-*")) == []
    later = newest_of(url, query)
    assert later.epoch > newest.epoch


@dataclass(frozen=True)
class Hold:
    """A query that waits for its listener until the restore begins, until it ends, or not at all."""

    restoring: bool
    replacing: bool

    def restores(self, run_id: str) -> bool:
        return self.restoring

    def replaces(self, run_id: str) -> bool:
        return self.replacing

    def refuses(self, run_id: str) -> None:
        """The listener stops the query itself."""


@pytest.mark.parametrize("hold", [Hold(False, False), Hold(True, False)], ids=["began", "left"])
def test_a_location_is_not_replaced_under_a_query_that_does_not_wait(
    lab: Lab, caplog: pytest.LogCaptureFixture, hold: Hold
) -> None:
    """It is stopped instead, and the location is its own."""
    url, location = str(lab.directory / "store"), lab.directory / "location"
    query = capture_batches(lab, url, location, 2)
    old = set_back(lab, url, query, lab.directory / "old")
    before = contents(old)
    with caplog.at_level(logging.ERROR), listening(lab.spark, url, stale="restore", hold=hold):
        behind = counted(lab, old, "stale")
        assert behind.awaitTermination(60)
    assert "is stopped" in caplog.text
    assert contents(old) == before
    assert list(lab.directory.glob("old.stale-*")) == []


def test_a_location_that_cannot_be_brought_up_to_date_stops_its_query(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of every checkpoint is gone from the store: nothing is changed, and nothing runs."""
    monkeypatch.setattr(uploads.plan_uploads, "__kwdefaults__", {"group_bytes": 200})
    url, location = str(lab.directory / "store"), lab.directory / "location"
    query = capture_batches(lab, url, location, 2)
    old = set_back(lab, url, query, lab.directory / "old")
    before = contents(old)
    for pack in Path(root_url(url, str(query.id))).glob("checkpoints/*/*"):
        pack.unlink()
    with caplog.at_level(logging.ERROR), listening(lab.spark, url, stale="restore"):
        behind = counted(lab, old, "stale")
        assert behind.awaitTermination(60)
    assert "is stopped" in caplog.text
    assert contents(old) == before


class SlowLocation(CheckpointLocation):
    """A location that is read so slowly that Spark purges a batch while its first state file is read."""

    def read(self, path: str, facts: FileFacts | None = None) -> bytes:
        """The bytes; by then what the same version has in the other partition is gone."""
        data = super().read(path, facts)
        file = parse_state_file(path)
        if file is not None and file.owner.partition == 0:
            other = Path(self.url, file.path.replace("state/0/0/", "state/0/1/"))
            wait_until(lambda: not other.exists(), "the purge")
        return data


def test_a_capture_slower_than_sparks_purge_says_what_to_set_and_leaves_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark keeps two batches, and purges them while they are uploaded; gc removes what that has left."""
    monkeypatch.setattr(uploads.plan_uploads, "__kwdefaults__", {"group_bytes": 1})
    url, location = str(lab.directory / "store"), lab.directory / "location"
    lab.spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    try:
        query = counted(lab, location, "fast")
        wait_for_batch(query, 3)
        spec = LocationSpec(str(location))
        info = QueryInfo(id=str(query.id), checkpoint_location=str(location))
        history = CheckpointStore.open(url, query=info)
        facts = QueryFacts(info, history.run_id, (), "test", "update")
        slow = QueryCapture(SlowLocation(spec, spec.open().store), history.writer(), facts)
        said = []
        for _ in range(3):
            with pytest.raises(RefusedError) as refused:
                slow.capture(slow.newest_committed())
            said.append(str(refused.value))
    finally:
        lab.spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
    assert "spark.sql.streaming.minBatchesToRetain" in said[2]
    left = [path for path in Path(url, "checkpoints").rglob("*") if path.is_file()]
    assert left and history.list_ids() == []
    assert history.cleanup_orphans(grace_ms=-60_000) == len(left)
    made = QueryCapture(spec.open(), history.writer(), facts).capture()
    query.stop()
    assert made is not None
    assert list(history.verify()) == []


@pytest.mark.spark
def test_a_stale_location_that_is_a_mount_point_stops_its_query(tmp_path: Path) -> None:
    """It cannot be renamed, as a volume of Kubernetes that is mounted right there: nothing runs from it."""
    need_namespaces()
    (tmp_path / "location").mkdir()
    done = subprocess.run(
        [
            *IN_NAMESPACE["bind"],
            str(tmp_path / "location"),
            sys.executable,
            "-m",
            "tests.integration.listener.mounted_app",
            str(tmp_path),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "has_ended": True,
        "batches": 0,
        "is_as_it_was": True,
        "was_behind": True,
        "aside": [],
    }
    assert "is stopped: checkpoint location is behind: it is at batch" in done.stderr


def test_a_location_whose_restore_was_interrupted_stops_its_query(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of a state is worse than none; also if a stale location would only be warned of."""
    location = lab.directory / "location"
    location.mkdir()
    (location / RESTORE_MARKER).write_text('{"query_id":"x","content_sha256":""}')
    with caplog.at_level(logging.ERROR), listening(lab.spark, str(lab.directory / "s"), stale="warn"):
        query = counted(lab, location, "half")
        assert query.awaitTermination(60)
    assert "was not finished" in caplog.text
    assert not list(location.glob("offsets/[0-9]*"))


def set_back(lab: Lab, url: str, query: StreamingQuery, old: Path) -> Path:
    """The location of ``query`` as it was at the oldest checkpoint of its history."""
    restore(url, str(old), epoch=_oldest(url, str(query.id)), clone=True)
    (old / "metadata").write_text(json.dumps({"id": str(query.id)}))
    return old


def _oldest(url: str, query_id: str) -> int:
    return min(epoch for _, epoch in CheckpointStore.open(root_url(url, query_id)).list())


def test_a_fenced_run_stops_its_query_with_stop_when_fenced(lab: Lab) -> None:
    """Another driver has claimed the history: this one's captures stop, and its query."""
    url = str(lab.directory / "store")
    with listening(lab.spark, url, stop_when_fenced=True) as listener:
        query = counted(lab, lab.directory / "location", "taken")
        wait_for_batch(query, 1)
        assert listener.flush(120)
        CheckpointStore.open(root_url(url, str(query.id)), run_id="other").claim()
        assert query.awaitTermination(60)
        assert [status.fenced for status in listener.statuses] == [True]


def test_of_two_listeners_on_one_url_one_steps_aside(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """It says so once; the query runs on, and every checkpoint is the other's."""
    url = str(lab.directory / "store")
    with (
        caplog.at_level(logging.WARNING),
        listening(lab.spark, url, stop_when_fenced=True) as one,
        listening(lab.spark, url, stop_when_fenced=True) as two,
    ):
        query = counted(lab, lab.directory / "location", "watched-twice")
        wait_for_batch(query, 3)
        flushed = [one.flush(120), two.flush(120)]
        wait_for_batch(query, 5)
        query.stop()
    assert sorted(flushed) == [False, True]
    assert sorted(status.aside for status in (*one.statuses, *two.statuses)) == [False, True]
    assert caplog.text.count("is left alone: its checkpoints are made by") == 1
    history = CheckpointStore.open(root_url(url, str(query.id)))
    manifests = [history.load_by_id(number) for number in history.list_ids()]
    assert len({manifest.instance_id for manifest in manifests if manifest is not None}) == 1
    newest = history.load_latest()
    assert newest is not None
    assert newest.epoch == max(
        int(path.name) for path in (lab.directory / "location/commits").glob("[0-9]*")
    )


def test_a_store_outage_fails_no_query(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """The query runs on; what failed is counted; when the store is back the newest batch is captured."""
    parent = lab.directory / "store"
    parent.write_text("in the way")
    with caplog.at_level(logging.WARNING), listening(lab.spark, str(parent)) as listener:
        query = counted(lab, lab.directory / "location", "away")
        wait_for_batch(query, 2)
        assert not listener.flush(60)
        (status,) = listener.statuses
        assert status.failures >= 1
        parent.unlink()
        assert listener.flush(60), listener.statuses
        assert query.isActive
        query.stop()
    assert caplog.text.count("capture failed") == 1


def test_bad_settings_are_refused_where_they_are_typed(lab: Lab) -> None:
    """Not at the first batch, and not in a log."""
    with pytest.raises(SettingsError, match="stale"):
        CheckpointListener(lab.spark, str(lab.directory), stale="never")
    with pytest.raises(SettingsError, match="retain"):
        CheckpointListener(lab.spark, str(lab.directory), retain=0)
    with pytest.raises(SettingsError, match="concurrency"):
        CheckpointListener(lab.spark, str(lab.directory), concurrency=0)
    with pytest.raises(SettingsError, match="unknown"):
        CheckpointListener(lab.spark, "s4://bucket/prefix")
