"""The listener when queries are started again, when stores are away, and when others look on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint import restore
from pyspark_checkpoint.cli import exits
from pyspark_checkpoint.cli.main import main
from pyspark_checkpoint.format.keys import manifest_key, parse_manifest_key
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.health import find_health
from pyspark_checkpoint.registry.queries import list_queries, resolve_root, root_url
from pyspark_checkpoint.store.local.local_store import LocalStore
from pyspark_checkpoint.store.open import open_object_store
from tests.integration.listener.lab import Lab
from tests.integration.listener.test_listener import (
    capture_batches,
    counted,
    listening,
    newest_of,
    set_back,
    wait_for_batch,
)
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import HDFS, KINDS, ROCKSDB_CHANGELOG, QuerySpec
from tests.support.lab import write_inputs
from tests.support.waiting import wait_until


def test_a_restarted_query_keeps_one_history(lab: Lab) -> None:
    """Late captures of a run that is over neither fence nor stop the run that follows it."""
    url, location = str(lab.directory / "store"), lab.directory / "location"
    with listening(lab.spark, url, stop_when_fenced=True) as listener:
        for batch in (0, 1, 2, 3):
            query = counted(lab, location, "again")
            wait_for_batch(query, batch)
            query.stop()
        query = counted(lab, location, "again")
        wait_for_batch(query, 5)
        assert listener.flush(120), listener.statuses
        (status,) = listener.statuses
        assert (status.fenced, status.last_error) == (False, None)
        assert query.isActive
        query.stop()
    history = CheckpointStore.open(root_url(url, str(query.id)))
    newest = history.load_latest()
    assert newest is not None
    assert newest.run_id == str(query.runId)
    epochs = [epoch for _, epoch in history.list()]
    assert epochs == sorted(epochs)
    assert list(history.verify()) == []


def test_a_restart_does_not_change_the_pipeline_hash(lab: Lab) -> None:
    """It has nothing to do, and its first look comes before its first event."""
    url, location = str(lab.directory / "store"), lab.directory / "location"
    hashes = []
    for _ in range(2):
        with listening(lab.spark, url) as listener:
            run = lab.start("aggregation", location, HDFS)
            run.finished()
            assert listener.flush(120), listener.statuses
        newest = newest_of(url, run.query)
        assert newest.source_offsets["source-0"].metadata["description"].startswith("FileStreamSource")
        commit = json.loads((location / f"commits/{newest.epoch}").read_text().split("\n")[1])
        assert newest.next_watermark_ms == commit["nextBatchWatermarkMs"] > 0
        hashes.append((newest.epoch, newest.pipeline_hash))
    assert hashes[0] == hashes[1]


def test_a_scheduled_query_is_pruned_though_each_start_uses_two_checkpoint_ids(lab: Lab) -> None:
    """One batch a start, as most scheduled queries: the history does not grow for ever."""
    url, location, inputs = (
        str(lab.directory / "store"),
        lab.directory / "location",
        lab.directory / "inputs",
    )
    inputs.mkdir()
    scheduled = Lab(lab.spark, inputs, lab.directory)
    with listening(lab.spark, url, retain=4) as listener:
        for number in range(9):
            write_inputs(inputs, [number])
            run = scheduled.start("stateless", location, HDFS)
            run.finished()
            assert listener.flush(120), listener.statuses
        assert len(listener.statuses) == 1, "one query, however often it was started"
    history = CheckpointStore.open(root_url(url, str(run.query.id)))
    assert len({epoch for _, epoch in history.list()}) <= 6
    assert list(history.verify()) == []


@contextmanager
def away(store: Path) -> Iterator[None]:
    """A store that cannot be reached, for the length of a block."""
    hidden = store.with_name("hidden")
    store.rename(hidden)
    store.write_text("in the way")
    try:
        yield
    finally:
        store.unlink()
        hidden.rename(store)


def test_a_location_that_was_behind_during_a_store_outage_is_stopped_afterwards(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """It has overtaken its history by then: what it had at its start is what counts."""
    store, location = lab.directory / "store", lab.directory / "location"
    url = str(store)
    query = capture_batches(lab, url, location, 3)
    newest = newest_of(url, query)
    old = set_back(lab, url, query, lab.directory / "old")
    with caplog.at_level(logging.WARNING), listening(lab.spark, url, poll_seconds=0.5) as listener:
        with away(store):
            behind = counted(lab, old, "stale")
            wait_for_batch(behind, newest.epoch + 2)
        assert behind.awaitTermination(120)
        assert not listener.flush(60)
        (status,) = listener.statuses
        assert "running on would repeat batches" in (status.last_error or "")
    assert "its history cannot be read yet" in caplog.text
    now = newest_of(url, query)
    assert (now.checkpoint_id, now.epoch) == (newest.checkpoint_id, newest.epoch)


def test_a_location_behind_its_history_runs_on_with_stale_warn(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once; what the history has is not captured again, and what comes after it is."""
    url, location = str(lab.directory / "store"), lab.directory / "location"
    query = capture_batches(lab, url, location, 3)
    newest = newest_of(url, query)
    old = set_back(lab, url, query, lab.directory / "old")
    with caplog.at_level(logging.WARNING), listening(lab.spark, url, stale="warn") as listener:
        behind = counted(lab, old, "stale")
        wait_for_batch(behind, newest.epoch + 2)
        first = behind.recentProgress[0]["batchId"]
        assert listener.flush(120), listener.statuses
        assert behind.isActive
        behind.stop()
    assert first <= newest.epoch, "it was behind"
    assert caplog.text.count("running on would repeat batches") == 1
    history = CheckpointStore.open(root_url(url, str(query.id)))
    epochs = [epoch for _, epoch in history.list()]
    assert epochs == sorted(epochs)
    assert epochs[-1] > newest.epoch


def test_only_chosen_queries_are_checkpointed(lab: Lab) -> None:
    """Chosen by name; the others are left alone, and nothing of them is in the store."""
    url = str(lab.directory / "store")
    with listening(lab.spark, url, queries=lambda name: name == "meant") as listener:
        queries = [counted(lab, lab.directory / name, name) for name in ("meant", "other")]
        for query in queries:
            wait_for_batch(query, 1)
        assert listener.flush(120)
        assert [status.query_name for status in listener.statuses] == ["meant"]
        for query in queries:
            query.stop()
    assert [root.name for root in list_queries(open_object_store(url))] == ["meant"]
    assert not Path(root_url(url, str(queries[1].id))).exists()


def test_failures_are_counted_and_recorded_in_the_store(
    lab: Lab, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The head of the history is damaged: the query runs, `ckpt watch` says why it is not captured."""
    url, location = str(lab.directory / "store"), lab.directory / "location"
    with listening(lab.spark, url) as listener:
        query = counted(lab, location, "seen")
        wait_for_batch(query, 1)
        assert listener.flush(120)
        query.stop()
    root = root_url(url, str(query.id))
    number = max(CheckpointStore.open(root).list_ids())
    path = Path(root, manifest_key(number))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"epoch":', b'"epoch" :', 1))
    with caplog.at_level(logging.WARNING), listening(lab.spark, url, poll_seconds=0.5) as listener:
        query = counted(lab, location, "seen")
        wait_for_batch(query, 3)
        assert not listener.flush(60)
        (status,) = listener.statuses
        assert status.failures >= 1
        assert main(["watch", url, "--once"]) == exits.FOUND
        assert manifest_key(number) in capsys.readouterr().out
        health = find_health(open_object_store(url), str(query.id))
        assert health is not None
        assert manifest_key(number) in health.message
        path.write_bytes(whole)
        assert listener.flush(60), listener.statuses
        assert find_health(open_object_store(url), str(query.id)) is None
        assert query.isActive
        query.stop()
    assert caplog.text.count("capture failed") == 1


def test_a_capture_that_fails_is_shown_by_ckpt_watch(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Only this query's state cannot be read; the store can be told, and is told when all is well again."""
    url, location = str(lab.directory / "store"), lab.directory / "location"
    setup = location / "state/0/_metadata/metadata"
    with listening(lab.spark, url, poll_seconds=0.5) as listener:
        query = counted(lab, location, "watched")
        wait_for_batch(query, 1)
        assert listener.flush(120)
        whole = setup.read_bytes()
        setup.write_text("torn")
        progress = query.lastProgress
        assert progress is not None
        wait_for_batch(query, progress["batchId"] + 2)
        assert not listener.flush(60)
        assert listener.statuses[0].failures >= 1
        assert main(["watch", url, "--query", "watched", "--once"]) == exits.FOUND
        shown = capsys.readouterr().out
        assert "captures fail since" in shown
        assert "state/0/_metadata/metadata is torn" in shown
        assert query.isActive
        setup.write_bytes(whole)
        assert listener.flush(60), listener.statuses
        assert main(["watch", url, "--query", "watched", "--once"]) == 0
        assert "captures fail" not in capsys.readouterr().out
        query.stop()


def test_a_location_with_a_name_that_urls_would_spell_otherwise(lab: Lab) -> None:
    """Blanks, per cent signs, letters: captured where it is, restored under such a name, and run again."""
    url, location = str(lab.directory / "store"), lab.directory / "a b%20c \u00e4"
    undisturbed = lab.run("transform-with-state", location, ROCKSDB_CHANGELOG)
    lab.capture(location, url, [6])
    fresh = lab.directory / "d e%20f \u00f6"
    restore(url, str(fresh), clone=True)
    found = lab.run("transform-with-state", fresh, HDFS)
    assert found == {batch: rows for batch, rows in undisturbed.items() if batch > 6}
    with listening(lab.spark, str(lab.directory / "listened")) as listener:
        query = counted(lab, lab.directory / "g h%20i \u00fc", "named")
        wait_for_batch(query, 1)
        assert listener.flush(120), listener.statuses
        (status,) = listener.statuses
        assert status.captures >= 1
        query.stop()


class OldDriver:
    """A driver of its own: it captures its first batch at once, and later ones when it is told to."""

    def __init__(self, driver: Driver, lab: Lab) -> None:
        self.url, self.location = str(lab.directory / "store"), lab.directory / "location"
        self.spec = QuerySpec(
            "rolling",
            "count",
            str(self.location),
            str(lab.directory / "results"),
            batches=10_000,
            conf=HDFS,
            interval_ms=60_000,
            listen=self.url,
            listen_seconds=3600.0,
        )
        self.driver = driver
        self.flushed: list[int] = []
        driver.start(self.spec)

    def history(self) -> CheckpointStore:
        """The history of its query."""
        return CheckpointStore.open(resolve_root(self.url, "rolling", None))

    def wait_until_behind(self) -> None:
        """Until it has finished a batch that it has not captured; its next one comes in a minute."""
        commits = self.location / "commits"
        wait_until(lambda: commits.is_dir() and newest_commit(self.location) >= 1, "two batches", 300)

    @contextmanager
    def is_faster(self) -> Iterator[None]:
        """Before this process creates its first manifest, the other one commits: an ordinary capture."""
        put = LocalStore.put

        def late(store: LocalStore, key: str, data: Any, **conditions: Any) -> Any:
            if parse_manifest_key(key) is not None and not self.flushed:
                self.flushed.append(newest_commit(self.location))
                self.driver.flush("rolling", timeout_seconds=60)
            return put(store, key, data, **conditions)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalStore, "put", late)
            yield


def newest_commit(location: Path) -> int:
    return max((int(path.name) for path in (location / "commits").glob("[0-9]*")), default=-1)


@pytest.mark.timeout(600)
def test_a_rolling_deployment_leaves_the_new_query_with_checkpoints(lab: Lab) -> None:
    """Two drivers: the old one commits between the new one's look at the history and its claim of it."""
    with Driver(lab.directory / "old.log") as driver:
        old = OldDriver(driver, lab)
        old.wait_until_behind()
        with old.is_faster(), listening(lab.spark, old.url, stop_when_fenced=True) as listener:
            build, mode = KINDS["count"]
            for name, value in HDFS.items():
                lab.spark.conf.set(name, value)
            writer = build(lab.spark, old.spec).writeStream.outputMode(mode).queryName("rolling")
            writer = writer.option("checkpointLocation", str(old.location)).format("noop")
            new = writer.trigger(processingTime="300 milliseconds").start()
            wait_for_batch(new, 4)
            assert listener.flush(120), listener.statuses
            (status,) = listener.statuses
            assert (status.fenced, status.last_error) == (False, None)
            assert old.flushed, "the old driver was not faster"
            assert new.isActive
            new.stop()
        driver.kill()
    history = old.history()
    found = [manifest for manifest in map(history.load_by_id, history.list_ids()) if manifest is not None]
    claim = next(number for number, one in enumerate(found) if one.run_id == str(new.runId))
    assert (found[claim].kind, found[claim].epoch) == (ManifestKind.CLAIM, old.flushed[0])
    assert {one.run_id for one in found[claim:]} == {str(new.runId)}, "the old driver is fenced"
    assert found[-1].epoch == newest_commit(old.location)
    assert list(history.verify()) == []


def test_a_query_whose_newest_checkpoint_was_deleted_is_not_captured_over_it(lab: Lab) -> None:
    """The next start says what is lost, and captures when a rollback has accepted it."""
    url, location = str(lab.directory / "store"), lab.directory / "location"
    with listening(lab.spark, url) as listener:
        query = counted(lab, location, "lost")
        wait_for_batch(query, 1)
        query.stop()
        assert listener.flush(120), listener.statuses
    history = CheckpointStore.open(root_url(url, str(query.id)))
    newest = history.load_latest()
    assert newest is not None
    history.store.delete([manifest_key(newest.checkpoint_id)])
    with listening(lab.spark, url, poll_seconds=0.2) as listener:
        query = counted(lab, location, "lost")
        wait_for_batch(query, newest.epoch + 1)
        assert not listener.flush(120)
        (status,) = listener.statuses
        assert f"checkpoint {newest.checkpoint_id} is missing" in str(status.last_error)
        assert max(history.list_ids()) == newest.checkpoint_id - 1
        assert query.isActive, "the query itself has lost nothing"
        assert main(["rollback", history.store.url, str(newest.checkpoint_id - 1)]) == 0
        assert listener.flush(120), listener.statuses
        query.stop()
    again = history.load_latest()
    assert again is not None
    assert (again.run_id, again.epoch) == (str(query.runId), newest_commit(location))
    assert list(history.verify()) == []
