"""``ckpt-sink``, as Spark sees it: one class from which everything else is made."""

from __future__ import annotations

import json
import sys
from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.sink.batch_commit import plan_batch
from pyspark_checkpoint.sink.batch_plan import plan_sink
from pyspark_checkpoint.sink.change_reader import CHANGE_TYPE_COLUMN, EPOCH_COLUMN, ChangeReader
from pyspark_checkpoint.sink.query import FACT_PREFIX
from pyspark_checkpoint.sink.table_options import parse_read_options, parse_write_options
from pyspark_checkpoint.sink.table_reader import FilteringTableReader, TableReader, read_table
from pyspark_checkpoint.sink.worker_cache import SeenHead, look_at_head
from pyspark_checkpoint.sink.writers import BatchWriter, StreamWriter
from pyspark_checkpoint.spark.worker_tuning import settle_worker
from pyspark_checkpoint.table.schema import TableSchema

_COMMIT_WORKER = "python_streaming_sink_runner"
_FILTER_WORKER = "data_source_pushdown_filters"


class CheckpointSinkSource(DataSource):
    """A table in a store: written exactly once by streams and batches, read at a checkpoint, or as changes.

    The same class serves with and without the jar; what needs the jar says so.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.options = options
        self.seen: SeenHead | None = None
        """What the process has found that was asked for the schema; travels with the pickle of this."""

    @classmethod
    def name(cls) -> str:
        """What users type in ``format(...)``."""
        return "ckpt-sink"

    def schema(self) -> StructType:
        """The columns of the table at the checkpoint that is read; of a stream, those of the changes."""
        if self.options.get(f"{FACT_PREFIX}ask") == "layout":
            return self._layout()
        options = parse_read_options(self.options)
        found = read_table(options)
        self.seen = found.seen
        settle_worker()
        schema = StructType.fromJson(found.table.schema.to_json())
        if options.changes:
            schema = schema.add(CHANGE_TYPE_COLUMN, StringType(), False).add(
                EPOCH_COLUMN, LongType(), False
            )
        return schema

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Plan the next batch; in the process that commits there is nothing to plan."""
        options = parse_write_options(self.options)
        if runs_as(_COMMIT_WORKER):
            return StreamWriter(options, None)
        plan = plan_batch(options, _table_schema(schema), streaming=True, overwrite=overwrite)
        settle_worker()
        return StreamWriter(options, plan)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Plan a batch job's epoch."""
        options = parse_write_options(self.options)
        plan = plan_batch(options, _table_schema(schema), streaming=False, overwrite=overwrite)
        return BatchWriter(options, plan, SYSTEM_CLOCK.uuid7())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read the table at one checkpoint.

        A reader that takes filters is an error for Spark where it hands none down, so it is given only
        to the process that does. And only to the jar: Spark's own wrapper keeps the reader of the first
        query over a DataFrame for all that follow, so that they would lack what the first left out.
        """
        options = parse_read_options(self.options)
        kind = FilteringTableReader if options.own_scan and runs_as(_FILTER_WORKER) else TableReader
        seen, self.seen = self.seen, None  # this travels with every task
        return kind(options, json.loads(schema.json()), seen)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read the changes of the table, epoch by epoch."""
        self.seen = None  # this travels with every task
        return ChangeReader(parse_read_options(self.options), json.loads(schema.json()))

    def _layout(self) -> StructType:
        """What the jar asks before it plans: the answer is the metadata of a column."""
        options = parse_write_options(self.options)
        plan = plan_sink(
            look_at_head(options.shared),
            options,
            TableSchema.from_json(json.loads(self.options[f"{FACT_PREFIX}schema"])),
            streaming=bool(options.facts.query_id),
            overwrite=options.facts.output_mode == "complete",
            store_id="",
        )
        metadata = {"partitions": plan.table.partitions, "vnodes": plan.table.vnodes}
        return StructType([StructField("layout", StringType(), True, metadata)])


def scanned_source(options: str, asked: CheckpointSinkSource | None) -> CheckpointSinkSource:
    """The source of a scan, as the jar describes it where its schema is known.

    Args:
        options: The options, as a JSON object.
        asked: The source that was asked for the schema, if one was: what it has seen saves requests.
    """
    source = CheckpointSinkSource(json.loads(options))
    source.seen = None if asked is None else asked.seen
    return source


def _table_schema(schema: StructType) -> TableSchema:
    return TableSchema.from_json(json.loads(schema.json()))


def runs_as(worker: str) -> bool:
    """Whether this process is Spark's worker of that name: Spark has one program per purpose."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    names = [*sys.modules, main.name if main is not None else ""]
    return any(name.rpartition(".")[2] == worker for name in names)
