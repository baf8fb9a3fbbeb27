"""The driver of ``benchmarks.peers``, on the Spark that has Iceberg and Delta."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.empty_sink import EMPTY_FORMAT, EmptySink
from tests.support.drivers.app import App, Running, main
from tests.support.drivers.queries import QuerySpec

MERGE = """MERGE INTO {table} t USING {changes} s ON t.key = s.key
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""


def rows_of(session: SparkSession, spec: QuerySpec) -> DataFrame:
    """A text key of 16 letters and a number: new keys for appends, the same ones again for upserts."""
    source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", spec.rows)
    number = F.col("value") % spec.rows if spec.kind == "upsert" else F.col("value")
    frame = source.option("numPartitions", 2).load()
    frame = frame.select(F.format_string("key-%012d", number).alias("key"), F.col("value"))
    shuffles = (
        spec.kind == "upsert" and "table" in spec.options
    )  # who merges, or owns keys, shuffles itself
    partitions = int(spec.conf["spark.sql.shuffle.partitions"])
    return frame if shuffles else frame.repartition(partitions, "key")


def merge_into(table: str) -> Any:
    """What upserts a batch by SQL."""

    def merge(frame: DataFrame, batch_id: int) -> None:  # noqa: ARG001 - Spark gives it
        frame.createOrReplaceTempView("changes")
        frame.sparkSession.sql(MERGE.format(table=table, changes="changes")).collect()

    return merge


class PeersApp(App):
    """Starts a query by the format, the table and the properties in its options."""

    def __init__(self, session: SparkSession) -> None:
        super().__init__(session)
        session.dataSource.register(EmptySink)  # for this session alone

    def start(self, spec: dict[str, Any]) -> None:
        """Start a query in a session with its own confs; make its table first, if it needs one."""
        wanted = QuerySpec(**spec)
        session = self._session if wanted.format == EMPTY_FORMAT else self._session.newSession()
        for name, value in wanted.conf.items():
            session.conf.set(name, value)
        options = dict(wanted.options)
        table, properties = options.pop("table", ""), options.pop("properties", "")
        if wanted.format in ("iceberg", "delta"):
            session.sql(
                f"CREATE TABLE {table} (key STRING, value BIGINT) USING {wanted.format} {properties}"
            )
        writer = rows_of(session, wanted).writeStream.queryName(wanted.name)
        writer = writer.option("checkpointLocation", wanted.location).trigger(processingTime="0 seconds")
        if wanted.format == "ckpt-sink":
            mode = "update" if wanted.kind == "upsert" else "append"
            writer = writer.format("ckpt-sink").outputMode(mode).options(**options).option("path", table)
        elif wanted.format in ("noop", EMPTY_FORMAT):
            writer = writer.format(wanted.format)
        elif wanted.kind == "upsert":
            writer = writer.foreachBatch(merge_into(table))
        elif wanted.format == "delta":
            writer = writer.format("delta").option("path", table.removeprefix("delta.").strip("`"))
        start = writer.start
        if wanted.format == "iceberg" and wanted.kind == "append":
            start = partial(writer.toTable, table)
        self._running[wanted.name] = Running(wanted, start)

    def time_read(self, spec: dict[str, Any], key: str) -> tuple[float, int]:
        """Milliseconds to read a whole table, or one key of it, and the number of rows that were found."""
        wanted = QuerySpec(**spec)
        options, began = dict(wanted.options), time.monotonic()
        table = options.pop("table")
        for written in ("properties", "keyColumns"):
            options.pop(written, "")
        if wanted.format == "ckpt-sink":
            frame = self._session.read.format("ckpt-sink").options(**options).load(table)
        else:
            frame = self._session.newSession().table(table)
        found = (frame.where(F.col("key") == key) if key else frame).agg(F.count("*"), F.sum("value"))
        rows: int = found.collect()[0][0]
        return 1000 * (time.monotonic() - began), rows


if __name__ == "__main__":
    main(PeersApp)
