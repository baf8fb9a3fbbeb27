"""The writers that Spark calls: ``write`` in tasks, ``commit`` and ``abort`` on the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import Unsupported
from pyspark_checkpoint.sink.batch_commit import commit_batch
from pyspark_checkpoint.sink.batch_plan import SinkPlan
from pyspark_checkpoint.sink.inline_plan import plan_inline
from pyspark_checkpoint.sink.inline_tasks import run_inline
from pyspark_checkpoint.sink.query import TaskFacts, task_facts
from pyspark_checkpoint.sink.table_options import WriteOptions
from pyspark_checkpoint.sink.task import SinkTask, StagedPartition
from pyspark_checkpoint.sink.worker_cache import open_store
from pyspark_checkpoint.spark.worker_tuning import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

_REPORT = "this Spark calls data sources in an unknown way; please report its version"


class StreamWriter(DataSourceStreamArrowWriter, WriterCommitMessage):
    """Writes the batches of a stream.

    Spark makes one in the process that plans a batch, sends it to the tasks, and makes another one in
    the process that commits; only the first has a plan. Where tasks run without Python, the jar sends the
    first one to the commit, as one more message.
    """

    def __init__(self, options: WriteOptions, plan: SinkPlan | None) -> None:
        # First of all: the jar finds it in the pickle of this, before anything that a user has written.
        self._inline = "" if plan is None else plan_inline(plan, options).mark()
        self._options = options
        self._plan = None if plan is None else plan.packed()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Make the rows of one partition durable; always reads them to the end."""
        return _write(self._options, self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """Publish the batch: one manifest, and the table has all of it."""
        plan = next((m._plan for m in messages if isinstance(m, StreamWriter)), None)
        of_tasks = [m for m in messages if not isinstance(m, StreamWriter)]
        commit_batch(self._options, run_inline(self._options, plan, of_tasks))
        settle_worker()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what was staged is not in the table, and another attempt may be under way."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame as one epoch. Spark sends this very object from the plan to the commit."""

    def __init__(self, options: WriteOptions, plan: SinkPlan, run_id: str) -> None:
        self._options = options
        self._plan = plan.packed()
        self._run_id = run_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Make the rows of one partition durable."""
        return _write(self._options, self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows: one manifest, and the table has all of them."""
        commit_batch(self._options, messages, run_id=self._run_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: what was staged is not in the table."""


def _write(
    options: WriteOptions, plan: SinkPlan | None, iterator: Iterator[pa.RecordBatch]
) -> StagedPartition:
    if plan is None:
        raise Unsupported("a task was started without the plan of its batch", hint=_REPORT)
    store = open_store(options.shared)
    staged = SinkTask(plan, current_task(), store, options.compression, SYSTEM_CLOCK).run(iterator)
    settle_worker()
    return staged


def current_task() -> TaskFacts:
    """Where this task is and whose it is, as Spark says."""
    context = TaskContext.get()
    if context is None:
        raise Unsupported("ckpt-sink writes in Spark tasks only", hint=_REPORT)
    return task_facts(
        context._localProperties or {},
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
    )
