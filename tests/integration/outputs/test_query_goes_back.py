"""Real queries with a file sink go back and catch up: every row once. Without the guard rows are lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_checkpoint import checkpoint, restore, rewind, savepoint
from pyspark_checkpoint.errors import Diverged
from pyspark_checkpoint.listener.listener import QueryListener
from tests.integration.outputs.test_file_sink_goes_back import KEEPS_ALL, Sink
from tests.support.drivers.queries import HDFS, ROCKSDB_V2
from tests.support.drivers.session import spark_session

KINDS = {
    "stateless": (False, KEEPS_ALL),
    "stateful": (True, {**HDFS, **KEEPS_ALL}),
    "stateful, format 2": (True, {**ROCKSDB_V2, **KEEPS_ALL}),
}


@pytest.fixture(scope="module")
def spark(class_path: tuple[Path, ...]) -> Iterator[SparkSession]:
    conf = {"spark.sql.shuffle.partitions": "1"}
    with spark_session("query-goes-back", conf, more_jars=class_path) as session:
        yield session


@contextmanager
def captured(spark: SparkSession, url: Path, sink: str = "fail") -> Iterator[QueryListener]:
    """Every query that is started meanwhile is guarded at its start, and captured."""
    with checkpoint(spark, str(url), interval_seconds=0, sink=sink) as listener:
        yield listener
        assert listener.flush()


def query_of(spark: SparkSession, path: Path, kind: str) -> Sink:
    """A query from files to files of this kind."""
    is_stateful, confs = KINDS[kind]
    return Sink(spark, path, is_stateful, dict(confs))


@pytest.mark.promise
@pytest.mark.parametrize("kind", KINDS)
def test_a_query_that_goes_back_and_catches_up_has_every_row_once(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Its history, its output and its location, by one call; then batches are cut in another way."""
    sink, url = query_of(spark, tmp_path, kind), tmp_path / "store"
    with captured(spark, url):
        sink.run(3)
    savepoint(str(url), "good")
    with captured(spark, url):
        sink.run(4)
    sink.check()
    done = rewind(str(url), at="good")
    assert done.restored is not None
    assert done.restored.batch_id == 2
    sink.check(3)
    with captured(spark, url):
        sink.go_on(3)
        sink.run(2)
    sink.check()


def test_without_the_guard_rows_are_lost(spark: SparkSession, tmp_path: Path) -> None:
    """The same restore, with what asks the output taken out: the proof can fail."""
    sink, url = query_of(spark, tmp_path, "stateless"), tmp_path / "store"
    with captured(spark, url):
        sink.run(3)
    savepoint(str(url), "good")
    with captured(spark, url):
        sink.run(3)
    with pytest.raises(Diverged, match="drop batches 3 to 5"):
        restore(str(url), str(tmp_path / "fresh"), at="good")
    restore(str(url), str(tmp_path / "fresh"), at="good", sink="warn")
    shutil.rmtree(sink.location)
    (tmp_path / "fresh").rename(sink.location)
    for number in range(sink.files, sink.files + 3):
        sink._write_input(number)
    sink.files += 3
    sink.go_on(3)
    with pytest.raises(AssertionError):
        sink.check()


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_copy_of_a_location_is_stopped_or_its_output_goes_back(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Nobody restored it, and no history knows the query: the guard at its start has only the output."""
    sink = query_of(spark, tmp_path, kind)
    sink.run(3)
    shutil.copytree(sink.location, tmp_path / "copy")
    sink.run(2)
    shutil.rmtree(sink.location)
    (tmp_path / "copy").rename(sink.location)
    with captured(spark, tmp_path / "first"):
        sink.go_on(2)
    sink.check()
    assert not (sink.location / "commits" / "3").exists(), "it was stopped before its first batch"
    with captured(spark, tmp_path / "second", sink="rollback"):
        sink.go_on(2)
        sink.run(1)
    sink.check()


def test_the_trap_of_spark_is_cured_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    """State format 2, and the driver died before ``commits/N``: stopped with the cure, or cured."""
    sink = query_of(spark, tmp_path, "stateful, format 2")
    sink.run(3)
    for name in ("2", ".2.crc"):
        (sink.location / "commits" / name).unlink(missing_ok=True)
    with captured(spark, tmp_path / "first"):
        sink.go_on()
    assert not (sink.location / "commits" / "2").exists()
    with captured(spark, tmp_path / "second", sink="rollback"):
        sink.go_on()
        sink.run(2)
    sink.check()
