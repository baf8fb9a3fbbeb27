"""A query whose location, output and checkpoints are in a bucket goes back whole: every row once.

Spark writes through Hadoop's connector, by its own file manager and by ours; we ask and go back through our
own store. What is left is read by Spark, and listed behind both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_checkpoint import checkpoint, restore, rewind, savepoint
from pyspark_checkpoint.errors import Diverged
from pyspark_checkpoint.listener.listener import QueryListener
from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.store.open import open_object_store
from tests.integration.outputs.test_file_sink_goes_back import KEEPS_ALL, PURGES, Sink
from tests.support.drivers.queries import HDFS
from tests.support.drivers.session import spark_session
from tests.support.servers.hadoop import FILE_MANAGER, spark_conf
from tests.support.servers.s3 import S3Server

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
STOCK = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"


@pytest.fixture(scope="module")
def spark(s3_server: S3Server, class_path: tuple[Path, ...]) -> Iterator[SparkSession]:
    """Spark with the connector; it deletes what has expired in the sink's log at once."""
    conf = {
        **spark_conf(s3_server.endpoint, file_manager=None),
        "spark.sql.streaming.fileSink.log.cleanupDelay": "0",
        "spark.sql.shuffle.partitions": "1",
    }
    with spark_session("outputs-on-s3", conf, more_jars=class_path) as session:
        yield session


@dataclass
class BucketSink(Sink):
    """The same query; its location, its output and its checkpoints are below a prefix of a bucket."""

    server: S3Server = field(kw_only=True)

    @property
    def prefix(self) -> str:
        """No other test writes there."""
        return f"file-sink/{self.path.name}"

    @property
    def url(self) -> str:
        """Where its checkpoints are, as our store spells it."""
        return self.server.url(f"{self.prefix}/checkpoints")

    @property
    def where(self) -> str:
        return self.server.url(f"{self.prefix}/location").replace("s3:", "s3a:")

    @property
    def target(self) -> str:
        return self.server.url(f"{self.prefix}/out").replace("s3:", "s3a:")

    @property
    def output(self) -> FileSinkOutput:
        return FileSinkOutput(self.target, open_object_store(self.target, self.server.options))

    def files_there(self) -> list[str]:
        """As the bucket lists them."""
        listed = open_object_store(self.target, self.server.options).list()
        return [info.key for info in listed if info.key.endswith(".parquet")]

    @contextmanager
    def captured(self, sink: str = "fail") -> Iterator[QueryListener]:
        """Guarded at its start and captured, to the same bucket."""
        options = self.server.options
        with checkpoint(self.spark, self.url, interval_seconds=0, sink=sink, options=options) as listener:
            yield listener
            assert listener.flush()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("is_stateful", "confs", "more"),
    [
        (False, {**KEEPS_ALL, MANAGER: STOCK}, 8),
        (True, {**HDFS, **PURGES, MANAGER: FILE_MANAGER}, 18),
    ],
    ids=["stateless, Spark's file manager", "stateful, ours, by the savepoint's pin alone"],
)
def test_a_query_in_a_bucket_goes_back_and_catches_up(
    spark: SparkSession,
    s3_server: S3Server,
    tmp_path: Path,
    confs: dict[str, str],
    more: int,
    *,
    is_stateful: bool,
) -> None:
    """Over compactions of the sink's log, by one call; a restore without it is refused."""
    sink, options = BucketSink(spark, tmp_path, is_stateful, confs, server=s3_server), s3_server.options
    with sink.captured():
        sink.run(4)
    kept = savepoint(sink.url, "good", options=options)
    assert "kept at version 3" in kept.outputs[0]
    with sink.captured():
        sink.run(more)
    sink.check()
    with pytest.raises(Diverged, match=f"drop batches 4 to {3 + more}"):
        restore(sink.url, f"{sink.where}-fresh", "good", options=options)
    done = rewind(sink.url, at="good", options=options)
    assert done.restored is not None and done.restored.batch_id == 3
    assert [plan.target for plan in done.restored.rolled_back] == [sink.target]
    sink.check(4)
    with sink.captured():
        sink.go_on(3)
        sink.run(8)
    sink.check()
