"""The driver of the benchmarks: what a test driver can run, and appends and upserts to every kind of table.

Iceberg and Delta are there on the Spark that has them. ``EmptySink`` is the floor under every sink that
runs Python for each task.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from tests.support.drivers.app import App, Running, main
from tests.support.drivers.queries import QuerySpec

EMPTY_FORMAT = "empty-arrow"
LAKES = ("iceberg", "delta")
MERGE = """MERGE INTO {table} t USING {changes} s ON t.key = s.key
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
MODES = {"append": "append", "shuffled": "append", "upsert": "update", "shuffled upsert": "append"}
MODES |= {"totals": "update", "complete totals": "complete"}
"""The kinds of queries, and their output modes."""


class _EmptyWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class EmptySink(DataSource):
    """Takes every row as Arrow and forgets it."""

    @classmethod
    def name(cls) -> str:
        return EMPTY_FORMAT

    def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002
        return _EmptyWriter()


def rows_of(session: SparkSession, spec: QuerySpec) -> DataFrame:
    """A text key of 16 letters and a number: new keys for appends, the same ones again for the others.

    Batches that begin before the query is stopped have no rows: a table has those of ``spec.batches``.
    """
    source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", spec.rows)
    number = F.col("value") if spec.kind in ("append", "shuffled") else F.col("value") % spec.rows
    frame = source.option("numPartitions", 2).load().where(F.col("value") < spec.batches * spec.rows)
    frame = frame.select(F.format_string("key-%012d", number).alias("key"), F.col("value"))
    if "totals" in spec.kind:
        return frame.groupBy("key").agg(F.sum("value").alias("value"))
    partitions = int(spec.conf["spark.sql.shuffle.partitions"])
    return frame.repartition(partitions, "key") if "shuffled" in spec.kind else frame


def merge_into(table: str) -> Any:
    """What upserts a batch by SQL."""

    def merge(frame: DataFrame, batch_id: int) -> None:  # noqa: ARG001 - Spark gives it
        frame.createOrReplaceTempView("changes")
        frame.sparkSession.sql(MERGE.format(table=table, changes="changes")).collect()

    return merge


class BenchApp(App):
    """Starts a query by the format, the table and the properties in its options."""

    def __init__(self, session: SparkSession) -> None:
        super().__init__(session)
        session.dataSource.register(EmptySink)  # for this session alone

    def start(self, spec: dict[str, Any]) -> None:
        """Start a query in a session with its own confs; make its table first, if it needs one."""
        wanted = QuerySpec(**spec)
        if wanted.kind not in MODES:
            super().start(spec)
            return
        session = self._session if wanted.format == EMPTY_FORMAT else self._session.newSession()
        for name, value in wanted.conf.items():
            session.conf.set(name, value)
        options = dict(wanted.options)
        table, properties = options.pop("table", ""), options.pop("properties", "")
        writer = rows_of(session, wanted).writeStream.queryName(wanted.name)
        writer = writer.option("checkpointLocation", wanted.location)
        writer = writer.trigger(processingTime=f"{wanted.interval_ms} milliseconds")
        start = writer.start
        if wanted.format in LAKES:
            columns = "key STRING, value BIGINT"
            session.sql(f"CREATE TABLE {table} ({columns}) USING {wanted.format} {properties}")
            if wanted.kind == "upsert":
                start = writer.foreachBatch(merge_into(table)).start
            elif wanted.format == "delta":
                start = partial(writer.format("delta").start, table.removeprefix("delta.").strip("`"))
            else:
                start = partial(writer.toTable, table)
        else:
            path = {"path": table} if table else {}
            writer = writer.format(wanted.format).outputMode(MODES[wanted.kind])
            start = writer.options(**options, **path).start
        self._running[wanted.name] = Running(wanted, start)

    def time_read(self, spec: dict[str, Any], where: str) -> tuple[float, int]:
        """Milliseconds to read the rows of a table that fit, and how many they are."""
        wanted = QuerySpec(**spec)
        options, began = dict(wanted.options), time.monotonic()
        table = options.pop("table")
        if wanted.format in LAKES:
            frame = self._session.newSession().table(table)
        else:
            options.pop("keyColumns", "")
            frame = self._session.read.format(wanted.format).options(**options).load(table)
        found = (frame.where(where) if where else frame).agg(F.count("*"), F.sum("value"))
        rows: int = found.collect()[0][0]
        return 1000 * (time.monotonic() - began), rows


if __name__ == "__main__":
    main(BenchApp)
