"""Real queries whose batches and tasks run twice, and one that a listener watches."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_checkpoint import checkpoint, open_object_store, restore
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.history.seal import find_seal
from pyspark_checkpoint.registry.queries import list_queries
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from tests.integration.coordinated.lab import KEYS, SHAPES, Lab, events
from tests.support.drivers.queries import HDFS, ROCKSDB_CHANGELOG, ROCKSDB_V2


def totals_of(rows: dict[str, int]) -> int:
    """How many rows a table or a state has counted."""
    return sum(json.loads(row)["n"] * times for row, times in rows.items())


def forget_commit(location: str, batch: int) -> None:
    """What a driver leaves that dies between the sink's commit and Spark's own log."""
    for name in (f"{batch}", f".{batch}.crc"):
        (Path(location) / "commits" / name).unlink(missing_ok=True)


@pytest.mark.parametrize("confs", [HDFS, ROCKSDB_V2], ids=["hdfs", "rocksdb-changelog-v2"])
def test_a_query_with_rand_has_rows_that_fit_its_state(
    lab: Lab, confs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch is repeated and has other rows: rows and state are both of the second time."""

    def luck(lab: Lab) -> DataFrame:
        return events(lab).where(F.rand() < 0.5).groupBy("k").agg(F.count("*").alias("n"))

    monkeypatch.setitem(SHAPES, "luck", (luck, "update"))
    monkeypatch.setitem(KEYS, "luck", "k")
    lab.put(0, 1, 2)
    lab.run("luck", "table", confs)
    location = lab.path("table-location")
    first = lab.table("table")
    forget_commit(location, 2)
    lab.run("luck", "table", confs)
    newest = lab.history("table").load_latest()
    assert newest is not None
    assert (newest.kind, newest.epoch) == (ManifestKind.REPLACEMENT, 2)
    assert lab.table("table") != first, "the attempts must differ, or nothing is shown"
    assert state_totals(lab, location) == totals_of(dict(lab.table("table")))
    lab.lose(location)
    restore(lab.path("table"), lab.path("again"))
    lab.put(3)
    lab.run("luck", "table", confs, lab.path("again"))
    assert state_totals(lab, lab.path("again")) == totals_of(dict(lab.table("table")))
    assert list(lab.history("table").verify()) == []


def state_totals(lab: Lab, location: str) -> int:
    """How many rows the state has counted, as Spark's own reader shows it."""
    found = lab.spark.read.format("statestore").load(location).select(F.sum("value.count").alias("n"))
    return int(found.collect()[0]["n"])


def test_a_retried_task_changes_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of its partition is written twice; the commit has what the second time left."""
    marks = lab.path("marks")
    Path(marks).mkdir()

    def flaky(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        yield from frames
        mark = Path(marks) / f"{batch}-{context.partitionId()}"
        if context.partitionId() == 0 and not mark.exists():
            mark.touch()
            raise RuntimeError("on purpose")

    def shape(lab: Lab) -> DataFrame:
        totals = events(lab).groupBy("k").agg(F.count("*").alias("n"), F.sum("id").alias("s"))
        return totals.mapInPandas(flaky, "k long, n long, s long")

    monkeypatch.setitem(SHAPES, "flaky", (shape, "update"))
    monkeypatch.setitem(KEYS, "flaky", "k")
    lab.put(0, 1, 2)
    lab.run("flaky", "table", HDFS)
    assert list(Path(marks).iterdir()), "no task failed"
    lab.lose(lab.path("table-location"))
    restore(lab.path("table"), lab.path("restored"), epoch=1)
    lab.run("flaky", "table", HDFS, lab.path("restored"))
    lab.run("flaky", "undisturbed", HDFS)
    assert lab.table("table") == lab.table("undisturbed")
    assert lab.state("flaky", lab.path("restored")) == lab.state("flaky", lab.path("undisturbed-location"))


def test_repartitioned_state_continues_with_its_table(lab: Lab) -> None:
    """Spark's own offline repartition adds a batch that never reaches the table."""
    lab.put(0, 1, 2, 3)
    lab.run("aggregation", "table", ROCKSDB_CHANGELOG)
    lab.lose(lab.path("table-location"))
    report = restore(lab.path("table"), lab.path("split"), epoch=2, partitions=3, spark=lab.spark)
    assert report.point is RestorePoint.AFTER
    lab.run("aggregation", "table", ROCKSDB_CHANGELOG, lab.path("split"))
    newest = lab.history("table").load_latest()
    assert newest is not None
    assert newest.epoch == 4, "epoch 3 is the batch that splits"
    lab.run("aggregation", "undisturbed", ROCKSDB_CHANGELOG)
    assert lab.table("table") == lab.table("undisturbed")
    found, expected = lab.path("split"), lab.path("undisturbed-location")
    assert lab.state("aggregation", found) == lab.state("aggregation", expected)
    assert list(lab.history("table").verify()) == []


def test_a_listener_uploads_nothing_and_seals_the_last_checkpoint(lab: Lab) -> None:
    """The query is shown like any other; its newest checkpoint restores to after its batch."""
    with checkpoint(lab.spark, lab.path("store"), poll_seconds=0.2) as listener:
        lab.put(0, 1, 2)
        lab.run("aggregation", "table", HDFS)
        newest = lab.history("table").load_latest()
        assert newest is not None
    [status] = listener.statuses
    assert (status.query_id, status.captured_epoch) == (newest.query.id, newest.epoch)
    stored = [info.key for info in open_object_store(lab.path("store")).list()]
    assert all(key.startswith(("names/", "apps/")) for key in stored), stored
    assert find_seal(lab.history("table").store, newest) is not None
    lab.lose(lab.path("table-location"))
    assert restore(lab.path("table"), lab.path("restored")).point is RestorePoint.AFTER


def test_a_relative_table_and_an_odd_location_are_found_from_elsewhere(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is meant from where Spark was started; ``#`` and ``?`` are letters of a path."""
    relative = Lab(lab.spark, lab.inputs, Path(os.path.relpath(tmp_path)))
    location, store = lab.path("lo#cation?"), lab.path("store")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with checkpoint(lab.spark, store, poll_seconds=0.2) as listener:
        for batches in ((0, 1), (2,)):  # a query's last batch is always captured
            lab.put(*batches)
            relative.run("aggregation", "table", HDFS, location, state="off")
            assert listener.flush(60)
    status = max(listener.statuses, key=lambda status: status.captured_epoch or 0)
    assert (status.captured_epoch, status.last_error) == (2, None)
    [root] = list_queries(open_object_store(lab.path("store")))
    assert Path(root.table).resolve() == tmp_path / "table"
    lab.lose(location)
    report = restore(lab.path("store"), location, epoch=1, sink="rollback")
    assert report.epoch == 1
    newest = lab.history("table").load_latest()
    assert newest is not None
    assert (newest.kind, newest.epoch) == (ManifestKind.ROLLBACK, 1)
