"""Spark accepts a file sink that went back, and its own trap is cured by going back one batch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.skipped_batch import find_skipped_batch
from pyspark_checkpoint.store.open import open_object_store
from tests.support.drivers.inputs import give_turn
from tests.support.drivers.queries import HDFS, ROCKSDB_V2
from tests.support.drivers.session import spark_session

QUERY = "whichever"
ROWS = 5
KEEPS_ALL = {"spark.sql.streaming.minBatchesToRetain": "100"}
PURGES = {"spark.sql.streaming.minBatchesToRetain": "2"}


@pytest.fixture(scope="module")
def spark(class_path: tuple[Path, ...]) -> Iterator[SparkSession]:
    """Stock Spark, which deletes what has expired in the sink's log at once."""
    conf = {"spark.sql.streaming.fileSink.log.cleanupDelay": "0", "spark.sql.shuffle.partitions": "1"}
    with spark_session("outputs", conf, more_jars=class_path) as session:
        yield session


@dataclass
class Sink:
    """A query from files to files. Every row is in two files of the input, and once in the output."""

    spark: SparkSession
    path: Path
    is_stateful: bool
    confs: dict[str, str]
    files: int = 0

    @property
    def location(self) -> Path:
        return self.path / "location"

    @property
    def where(self) -> str:
        """The checkpoint location as Spark is told."""
        return str(self.location)

    @property
    def target(self) -> str:
        """Where the rows go."""
        return f"file:{self.path}/out"

    @property
    def output(self) -> FileSinkOutput:
        """The sink, opened as a restore does."""
        return FileSinkOutput(self.target, open_object_store(self.target))

    def run(self, batches: int, files_per_batch: int = 1) -> None:
        """So many batches more."""
        for number in range(self.files, self.files + batches * files_per_batch):
            self._write_input(number)
        self.files += batches * files_per_batch
        self.go_on(files_per_batch)

    def go_on(self, files_per_batch: int = 1) -> None:
        """Run until the input is used up."""
        for key, value in self.confs.items():
            self.spark.conf.set(key, value)
        source = self.spark.readStream.option("maxFilesPerTrigger", files_per_batch)
        rows = source.schema("id long, again boolean").json(str(self.path / "in"))
        rows = rows.dropDuplicates(["id"]) if self.is_stateful else rows.where("not again")
        writer = rows.select("id", (F.col("id") % 3).alias("part")).writeStream.partitionBy("part")
        writer = writer.option("checkpointLocation", self.where).trigger(availableNow=True)
        writer.start(self.target, format="parquet").awaitTermination()

    def keep(self, name: str) -> int:
        """A savepoint: the location as it is, and the output pinned. Its batch."""
        shutil.copytree(self.location, self.path / name)
        batch_id = max(int(file.name) for file in (self.location / "commits").glob("[0-9]*"))
        assert self.output.pin(name, QUERY, batch_id) is not None
        return batch_id

    def go_back(self, name: str, batch_id: int) -> None:
        """Location and output."""
        shutil.rmtree(self.location)
        if name:
            shutil.copytree(self.path / name, self.location)
        plan = self.output.plan_roll_back(QUERY, batch_id)
        assert plan is not None
        self.output.roll_back(plan)

    def check(self, files: int | None = None) -> None:
        """Each row of the input once, in the files that the log names, and no other file."""
        read = self.spark.read.schema("id long, part int").parquet(self.target)
        ids = sorted(row.id for row in read.collect())
        assert ids == list(range((self.files if files is None else files) * ROWS))
        named = {name.rpartition("/")[2] for name in read.inputFiles()}
        assert named == {file.rpartition("/")[2] for file in self.files_there()}

    def files_there(self) -> list[str]:
        """Every file of rows below the output, whether the log names it or not."""
        return [str(file) for file in (self.path / "out").rglob("*.parquet")]

    def _write_input(self, number: int) -> None:
        first = number * ROWS
        old = range(max(first - ROWS, 0), first)
        lines = [
            json.dumps({"id": id_, "again": id_ < first}) for id_ in (*old, *range(first, first + ROWS))
        ]
        hidden = self.path / "in" / f".{number:03d}.json"
        hidden.parent.mkdir(exist_ok=True)
        hidden.write_text("\n".join(lines))
        give_turn(hidden, number)
        hidden.rename(hidden.with_name(f"{number:03d}.json"))


def test_spark_goes_on_where_all_entries_are_left(spark: SparkSession, tmp_path: Path) -> None:
    """A stateless query over two compactions; the batches are cut in another way then."""
    sink = Sink(spark, tmp_path, is_stateful=False, confs=KEEPS_ALL)
    sink.run(9)
    batch_id = sink.keep("first")
    sink.run(13)
    sink.go_back("first", batch_id)
    sink.check(9)
    sink.go_on(2)
    sink.run(12)
    sink.check()


@pytest.mark.promise
def test_spark_goes_on_where_a_pin_alone_knows_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    """A stateful query: to a batch above a compaction, to one below the first, and to the beginning."""
    sink = Sink(spark, tmp_path, is_stateful=True, confs={**HDFS, **PURGES})
    sink.run(5)
    first = sink.keep("first")
    sink.run(8)
    second = sink.keep("second")
    sink.run(19)
    log = {file.name for file in (tmp_path / "out" / "_spark_metadata").glob("[0-9]*")}
    assert log == {"29.compact", "30", "31"}
    sink.go_back("second", second)
    sink.check(13)
    sink.go_on(2)
    sink.run(12)
    sink.check()
    sink.go_back("first", first)
    sink.check(5)
    sink.go_on(4)
    sink.run(12)
    sink.check()
    sink.go_back("", -1)
    sink.check(0)
    sink.go_on(6)
    sink.run(2)
    sink.check()


def test_the_trap_of_spark_is_real_and_cured(spark: SparkSession, tmp_path: Path) -> None:
    """State format 2, and the driver died between the sink's commit and ``commits/N``."""
    sink = Sink(spark, tmp_path, is_stateful=True, confs={**ROCKSDB_V2, **KEEPS_ALL})
    sink.run(3)
    for name in ("2", ".2.crc"):
        (sink.location / "commits" / name).unlink(missing_ok=True)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="CheckpointInfo length: 0"):
            sink.go_on()
    assert found_trap(sink) == 2
    plan = sink.output.plan_roll_back(QUERY, 1)
    assert plan is not None
    sink.output.roll_back(plan)
    assert found_trap(sink) is None
    sink.go_on()
    sink.check()
    sink.run(2)
    sink.check()


def test_format_1_goes_on_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    """The state of the batch is there by its number: nothing is to be cured."""
    sink = Sink(spark, tmp_path, is_stateful=True, confs={**HDFS, **KEEPS_ALL})
    sink.run(3)
    for name in ("2", ".2.crc"):
        (sink.location / "commits" / name).unlink(missing_ok=True)
    assert found_trap(sink) is None
    sink.run(2)
    sink.check()


def found_trap(sink: Sink) -> int | None:
    """What a preflight finds."""
    return find_skipped_batch(
        LocationSpec(str(sink.location)).open().listing(),
        sink.output.position(QUERY).batch_id,
        runs_skipped_batches=FileSinkOutput.runs_skipped_batches,
    )
