"""A file sink on a real HDFS goes back through Spark's own file system, and Spark goes on from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_checkpoint.errors import Unsupported
from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.outputs.ask import OutputQuestion
from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.spark.iceberg_catalog import SessionTables
from tests.support.drivers.inputs import give_turn
from tests.support.drivers.session import spark_session
from tests.support.servers.hdfs import mini_hdfs

QUERY = "whichever"
pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """The session whose Hadoop reaches HDFS; what has expired in the sink's log goes at once."""
    conf = {
        "spark.sql.streaming.fileSink.log.cleanupDelay": "0",
        "spark.sql.streaming.minBatchesToRetain": "2",
    }
    with spark_session("hdfs", conf) as session:
        yield session


def run(spark: SparkSession, directory: Path, target: str, numbers: range) -> None:
    """One batch for each of these files."""
    for number in numbers:
        file = directory / "in" / f"{number:03d}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'{{"id": {number}}}')
        give_turn(file, number)
    rows = spark.readStream.option("maxFilesPerTrigger", 1).schema("id long").json(str(directory / "in"))
    writer = rows.writeStream.option("checkpointLocation", str(directory / "location"))
    writer.trigger(availableNow=True).start(target, format="parquet").awaitTermination()


def check(spark: SparkSession, target: str, output: FileSinkOutput, rows: int) -> None:
    """Each row once, and no file that the log does not name."""
    read = spark.read.schema("id long").parquet(target)
    assert sorted(row.id for row in read.collect()) == list(range(rows))
    files = [info.key for info in output.store.list() if info.key.endswith(".parquet")]
    assert len(files) == len(read.inputFiles())


def test_a_file_sink_on_hdfs_goes_back(spark: SparkSession, tmp_path: Path) -> None:
    """With a pin, since Spark has deleted the entries of the batch; the record alone is not trusted."""
    with mini_hdfs() as hdfs:
        target = f"{hdfs.endpoint}/data/out"
        run(spark, tmp_path, target, range(13))
        record, tables = SinkRecord("file", target), SessionTables(spark)
        with pytest.raises(Unsupported, match="on a file system of Hadoop"):
            OutputQuestion(str(tmp_path), tables=tables).open(record)
        with pytest.raises(Unsupported, match="through Spark alone"):
            OutputQuestion(str(tmp_path), place=target).open(record)
        output = OutputQuestion(str(tmp_path), place=target, tables=tables).open(record)
        assert isinstance(output, FileSinkOutput)
        assert output.pin("before", QUERY, 12) is not None
        shutil.copytree(tmp_path / "location", tmp_path / "savepoint")
        run(spark, tmp_path, target, range(13, 32))
        assert output.position(QUERY).batch_id == 31
        plan = output.plan_roll_back(QUERY, 12)
        assert plan is not None
        output.roll_back(plan)
        check(spark, target, output, 13)
        shutil.rmtree(tmp_path / "location")
        shutil.copytree(tmp_path / "savepoint", tmp_path / "location")
        run(spark, tmp_path, target, range(32, 34))
        check(spark, target, output, 34)
