"""State that Spark repartitions, by a batch that never reaches the table. No Spark."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.capture.commit_log import find_commit
from pyspark_checkpoint.errors import RefusedError, SettingsError
from pyspark_checkpoint.restorer.repartition import repartition_point
from pyspark_checkpoint.spark_files.divergence import only_split
from pyspark_checkpoint.spark_files.logs import OffsetLog
from pyspark_checkpoint.spark_files.requirements import PARTITIONS
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from tests.support.made_stream import MadeStream, totals_after

TWO = OffsetLog(5, 7, {PARTITIONS: "2", "a": "b"}, ("x", None))
FOUR = replace(TWO, conf={**TWO.conf, PARTITIONS: "4"})


@pytest.mark.parametrize("partitions", [4, 1])
@pytest.mark.parametrize("version", [1, 2])
def test_a_table_continues_after_its_state_was_repartitioned(
    tmp_path: Path, version: int, partitions: int
) -> None:
    """The repartition batch has no rows and no epoch in the table; both later points restore."""
    stream = MadeStream(tmp_path, version=version, zips=version == 1)
    stream.run(4)
    stream.restore(epoch=2)
    stream.repartition(partitions)
    stream.start()
    assert stream.next_batch() == 4
    first = stream.batch()
    later = stream.batch()
    assert (first.epoch, later.epoch) == (4, 5)
    # Batch 3 was the repartition, so that its keys were never read.
    expected = counted(0, 1, 2, 4, 5)
    assert stream.rows() == stream.whole_state(6) == expected
    assert list(stream.history().verify()) == []
    assert stream.stored_state(first, "before") == counted(0, 1, 2)
    assert stream.stored_state(first, "after") == counted(0, 1, 2, 4)
    stream.lose_location()
    stream.restore(epoch=4)
    stream.run(1)
    assert stream.rows() == expected


@pytest.mark.parametrize("kind", ["v1", "v2", "zips"])
def test_an_old_disk_is_refused_though_its_state_was_repartitioned(tmp_path: Path, kind: str) -> None:
    """Its state belongs to rows that the table has replaced since, in whatever number of partitions."""
    chance = random.Random(1)
    stream = MadeStream(tmp_path, version=2 if kind == "v2" else 1, zips=kind == "zips", chance=chance)
    stream.run(3)
    old = stream.location
    stream.restore(point="before")
    stream.batch()
    stream.location = old
    stream.repartition(4)
    stream.start()
    with pytest.raises(RefusedError, match="checkpoint location has diverged from the table"):
        stream.batch()


def counted(*batches: int) -> dict[int, int]:
    """What the query has counted in these batches."""
    found: dict[int, int] = {}
    for batch in batches:
        before = totals_after(batch - 1) if batch else {}
        for key, total in totals_after(batch).items():
            found[key] = found.get(key, 0) + total - before.get(key, 0)
    return {key: total for key, total in found.items() if total}


def test_any_other_gap_is_refused(tmp_path: Path) -> None:
    """A batch ran that the table does not know: its rows would be missing for good."""
    stream = MadeStream(tmp_path)
    stream.run(3)
    stream.options["state"] = "off"
    stream.table = tmp_path / "another"
    stream.start()
    stream.run(1)
    del stream.options["state"]
    stream.table = tmp_path / "table"
    stream.start()
    with pytest.raises(RefusedError, match="the rows in between are not in the table"):
        stream.batch()


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ([TWO, FOUR], True),
        ([TWO, FOUR, TWO], True),
        ([TWO, TWO], False),
        ([TWO, replace(FOUR, timestamp_ms=8)], False),
        ([TWO, replace(FOUR, watermark_ms=6)], False),
        ([TWO, replace(FOUR, offsets=("y", None))], False),
        ([TWO, replace(FOUR, conf={PARTITIONS: "4"})], False),
        ([TWO, FOUR, replace(FOUR, timestamp_ms=9)], False),
    ],
)
def test_a_repartition_batch_has_the_last_offsets_and_other_partitions(
    logs: list[OffsetLog], expected: bool
) -> None:
    """A batch that read nothing is none: it may have put out what the watermark closed."""
    assert only_split(logs) is expected


def test_an_unfinished_checkpoint_is_not_repartitioned(tmp_path: Path) -> None:
    """Spark refuses it, too; here that is said before anything is restored."""
    stream = MadeStream(tmp_path, zips=True)
    stream.run(3)
    newest, earlier = (stream.history().load_by_id(number) for number in (3, 2))
    assert newest is not None
    assert earlier is not None
    with pytest.raises(RefusedError, match="does not know whether Spark finished"):
        repartition_point(newest, None, find_commit(stream.history(), newest))
    commit = find_commit(stream.history(), earlier)
    assert repartition_point(earlier, None, commit) is RestorePoint.AFTER
    with pytest.raises(SettingsError, match="point is before"):
        repartition_point(earlier, RestorePoint.BEFORE, commit)
