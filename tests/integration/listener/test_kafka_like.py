"""A source whose offsets are dictionaries, as a broker's are: partitions of a topic and their ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_checkpoint import restore
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from tests.integration.listener.lab import Lab
from tests.support.drivers.queries import HDFS

PARTITIONS = 2
EPOCHS = 6

Offset = dict[str, dict[str, int]]
"""Of each topic the ends of its partitions."""


class _Slice(InputPartition):
    def __init__(self, partition: int, start: int, end: int) -> None:
        self.partition, self.start, self.end = partition, start, end


class _Reader(DataSourceStreamReader):
    """Reads numbers; how many there are is in a file, which the test lets grow."""

    def __init__(self, path: str) -> None:
        self._path = path

    def initialOffset(self) -> Offset:
        return {"topic": dict.fromkeys(map(str, range(PARTITIONS)), 0)}

    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:
        end = int(Path(self._path).read_text())
        return {"topic": {str(partition): end + partition for partition in range(PARTITIONS)}}

    def partitions(self, start: Offset, end: Offset) -> list[_Slice]:
        return [
            _Slice(number, start["topic"][str(number)], end["topic"][str(number)])
            for number in range(PARTITIONS)
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        assert isinstance(partition, _Slice)
        for value in range(partition.start, partition.end):
            yield (partition.partition, value)


class _Broker(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers-broker"

    def schema(self) -> str:
        return "partition int, value long"

    def streamReader(self, schema: StructType) -> _Reader:
        return _Reader(self.options["path"])


def _run(lab: Lab, location: Path, ends: list[int]) -> list[list[str]]:
    """One batch for each end of the topic; what each put out."""
    topic = lab.directory / "topic"
    batches: list[list[str]] = []

    def keep(frame: DataFrame, batch: int) -> None:
        batches.append(sorted(row[0] for row in frame.select(F.to_json(F.struct("*"))).collect()))

    topic.write_text(str(ends[0]))
    frame = lab.spark.readStream.format("numbers-broker").option("path", str(topic)).load()
    counted = frame.groupBy("partition").agg(F.count("*").alias("n"), F.sum("value").alias("sum"))
    writer = counted.writeStream.outputMode("update").foreachBatch(keep)
    query: StreamingQuery = writer.option("checkpointLocation", str(location)).start()
    try:
        for end in ends:
            hidden = lab.directory / ".topic"
            hidden.write_text(str(end))
            hidden.rename(topic)
            query.processAllAvailable()
    finally:
        query.stop()
    return batches


def test_a_query_goes_on_from_the_offsets_of_its_checkpoint(lab: Lab) -> None:
    """The manifest has them as the source gave them; nothing is read twice, nothing is left out."""
    for name, value in HDFS.items():
        lab.spark.conf.set(name, value)
    lab.spark.dataSource.register(_Broker)
    ends = [(epoch + 1) * 10 for epoch in range(EPOCHS)]
    undisturbed = _run(lab, lab.directory / "location", ends)
    assert len(undisturbed) == EPOCHS
    (number,) = lab.capture(lab.directory / "location", lab.directory / "store", [2])
    manifest = CheckpointStore.open(str(lab.directory / "store")).load_by_id(number)
    assert isinstance(manifest, CheckpointManifest)
    assert manifest.source_offsets["source-0"].offsets["offset"] == '{"topic": {"0": 30, "1": 31}}'
    restore(str(lab.directory / "store"), str(lab.directory / "fresh"), clone=True)
    assert _run(lab, lab.directory / "fresh", ends[3:]) == undisturbed[3:]
