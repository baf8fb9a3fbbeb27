"""Real queries: the location is lost, a checkpoint of rows and state is restored, all goes on as before."""

from __future__ import annotations

import pytest

from pyspark_checkpoint import restore
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from tests.integration.coordinated.lab import SHAPES, Lab
from tests.support.drivers.queries import HDFS, PROVIDERS, ROCKSDB, ROCKSDB_CHANGELOG, ROCKSDB_V2
from tests.support.lab import QUERIES

NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
CASES = [
    pytest.param("aggregation", HDFS, id="aggregation-hdfs", marks=pytest.mark.promise),
    pytest.param("join", ROCKSDB_V2, id="join-rocksdb-changelog-v2"),
    pytest.param("two-operators", ROCKSDB, id="two-operators-rocksdb"),
    pytest.param("transform-with-state", ROCKSDB_CHANGELOG, id="transform-with-state-rocksdb-changelog"),
]
SHAPED = [
    pytest.param("branches", HDFS, id="branches-hdfs"),
    pytest.param("branches", ROCKSDB_V2, id="branches-rocksdb-changelog-v2"),
    pytest.param("limited", HDFS, id="limited"),
]
ALONE = [
    pytest.param("shuffled", HDFS, id="shuffled"),
    pytest.param("gathered", ROCKSDB_V2, id="gathered"),
    pytest.param("union", HDFS, id="union"),
]
MATRIX = [
    pytest.param(query, confs, id=f"{query}-{name}")
    for query in QUERIES
    for name, confs in PROVIDERS.items()
    if query != "transform-with-state" or name != "hdfs"
]


def check_both_points(lab: Lab, query: str, confs: dict[str, str], files: int = 6) -> None:
    """Run most batches, lose the location, restore before and after, and compare with one run.

    ``files``: six batches close windows, time out sessions and match outer rows; four are enough for
    queries that do nothing of that kind.
    """
    lab.put(*range(files - 2))
    lab.run(query, "table", confs)
    lab.lose(lab.path("table-location"))
    newest = restore(lab.path("table"), lab.path("newest"))
    assert newest.point is RestorePoint.BEFORE
    lab.put(files - 2, files - 1)
    lab.run(query, "table", confs, lab.path("newest"))
    lab.lose(lab.path("newest"))
    earlier = restore(lab.path("table"), lab.path("earlier"), epoch=files - 4)
    assert earlier.point is RestorePoint.AFTER
    lab.run_all(query, confs, {"table": lab.path("earlier"), "undisturbed": ""})
    assert lab.table("undisturbed")
    assert lab.table("table") == lab.table("undisturbed")
    assert lab.state(query, lab.path("earlier")) == lab.state(query, lab.path("undisturbed-location"))
    for epoch in range(files):
        assert lab.rows("table", epoch) == lab.rows("undisturbed", epoch), f"epoch {epoch}"
    assert list(lab.history("table").verify()) == []


@pytest.mark.parametrize(("query", "confs"), CASES)
def test_both_restore_points_continue_like_an_undisturbed_run(
    lab: Lab, query: str, confs: dict[str, str]
) -> None:
    """The table of every epoch and the state at the end are equal."""
    check_both_points(lab, query, confs)


@pytest.mark.parametrize(("query", "confs"), SHAPED)
def test_sink_partitions_need_not_be_state_partitions(lab: Lab, query: str, confs: dict[str, str]) -> None:
    """A shuffle, a coalesce, a union, one partition only, a limit, and rows that need no state."""
    assert query in SHAPES
    check_both_points(lab, query, confs, files=4)


def test_batches_without_data_are_committed_like_any_other(lab: Lab) -> None:
    """The watermark moved on and nothing came: state is evicted, windows are put out, an epoch is made."""
    confs = {**HDFS, NO_DATA: "true"}
    try:
        lab.put(0, 1, 2, 3)
        lab.run("aggregation-append", "table", confs)
        first = lab.history("table").load_latest()
        assert first is not None
        assert first.epoch == 4, "four files, and a batch without data"
        lab.lose(lab.path("table-location"))
        restore(lab.path("table"), lab.path("restored"))
        lab.put(4, 5)
        lab.run("aggregation-append", "table", confs, lab.path("restored"))
        lab.run("aggregation-append", "undisturbed", confs)
    finally:
        lab.spark.conf.set(NO_DATA, "false")
    assert lab.table("table") == lab.table("undisturbed")
    found, expected = lab.path("restored"), lab.path("undisturbed-location")
    assert lab.state("aggregation-append", found) == lab.state("aggregation-append", expected)


@pytest.mark.soak
@pytest.mark.parametrize(("query", "confs"), [*MATRIX, *ALONE])
def test_every_operator_and_provider(lab: Lab, query: str, confs: dict[str, str]) -> None:
    """The whole matrix."""
    check_both_points(lab, query, confs)
