"""A small bench for one table: batches in as files, one file a batch, and the table out as rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.head import find_head
from tests.support.drivers.inputs import give_turn

Shape = Callable[[DataFrame], DataFrame]


def same(frame: DataFrame) -> DataFrame:
    """The rows as they come."""
    return frame


class Lab:
    """Input files, a table, and queries between them; every name is a directory below ``root``."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self._files = 0

    def path(self, name: str) -> str:
        """A directory of this bench."""
        return str(self.root / name)

    def put(self, rows: pa.Table | Sequence[dict[str, Any]], schema: pa.Schema | None = None) -> None:
        """Add one file to the input: the rows of the next batch."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=schema)
        directory = self.root / "input"
        directory.mkdir(exist_ok=True)
        hidden = directory / f".{self._files:05d}.parquet"
        pq.write_table(table, hidden)
        give_turn(hidden, self._files)
        hidden.rename(directory / f"{self._files:05d}.parquet")
        self._files += 1

    def input(self, *, stream: bool = True) -> DataFrame:
        """The input, as a stream of one file a batch, or as a whole."""
        schema = self.spark.read.parquet(self.path("input")).schema
        if not stream:
            return self.spark.read.schema(schema).parquet(self.path("input"))
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(self.path("input"))

    def start(
        self,
        shape: Shape = same,
        *,
        mode: str = "append",
        table: str = "table",
        location: str | None = None,
        frame: DataFrame | None = None,
        **options: str,
    ) -> StreamingQuery:
        """Start a query that takes all input there is, one file a batch, and ends."""
        stream = shape(self.input() if frame is None else frame)
        writer = stream.writeStream.format("ckpt-sink").outputMode(mode)
        writer = writer.option("checkpointLocation", self.path(location or f"location-{table}"))
        writer = writer.options(**options).trigger(availableNow=True)
        return writer.start(options.get("path") or self.path(table))

    def run(self, shape: Shape = same, /, **arguments: Any) -> StreamingQuery:
        """The same, and wait for its end; a failed query is an error."""
        query = self.start(shape, **arguments)
        query.awaitTermination()
        return query

    def read(self, table: str = "table", **options: str) -> DataFrame:
        """The table, as Spark reads it."""
        return self.spark.read.format("ckpt-sink").options(**options).load(self.path(table))

    def head(self, table: str = "table") -> CheckpointManifest:
        """The newest manifest."""
        head = find_head(open_object_store(self.path(table)))
        assert head is not None
        return head.manifest


def rows_of(frame: DataFrame) -> Counter[str]:
    """All rows, however ordered, each as often as it is there."""
    return Counter(repr(row) for row in frame.collect())
