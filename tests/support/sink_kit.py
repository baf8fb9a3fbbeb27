"""A query without Spark: plans, tasks and commits run in this process, each when a test says so.

The code is the sink's own; only the moving of rows to partitions and the calls in Spark's order are
done here. That makes crashes between any two steps a matter of not taking the next one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.artifact_reader import ArtifactReader
from pyspark_checkpoint.sink.batch_commit import commit_batch, plan_batch
from pyspark_checkpoint.sink.batch_plan import SinkPlan
from pyspark_checkpoint.sink.chain import ChainReader
from pyspark_checkpoint.sink.inline_plan import InlinePlan, plan_inline
from pyspark_checkpoint.sink.inline_tasks import run_inline
from pyspark_checkpoint.sink.query import TaskFacts, facts_from_fields
from pyspark_checkpoint.sink.table_options import WriteOptions, parse_read_options, parse_write_options
from pyspark_checkpoint.sink.table_reader import read_table
from pyspark_checkpoint.sink.task import DriverFacts, InlineRows, SinkTask, StagedPartition
from pyspark_checkpoint.sink.worker_cache import CACHE, WorkerCache, open_store
from pyspark_checkpoint.table.schema import TableSchema
from pyspark_checkpoint.table.vnode import vnodes_of

SCHEMA = TableSchema.from_json(
    {
        "type": "struct",
        "fields": [
            {"name": "k", "type": "long", "nullable": True, "metadata": {}},
            {"name": "v", "type": "long", "nullable": True, "metadata": {}},
        ],
    }
)
ARROW = SCHEMA.arrow()


def rows_from(pairs: Sequence[tuple[int | None, int]]) -> pa.Table:
    """Rows of keys and values."""
    return pa.table(
        {"k": pa.array([k for k, _ in pairs], pa.int64()), "v": pa.array([v for _, v in pairs], pa.int64())}
    )


def offsets_text(batch_id: int, note: str = "") -> str:
    """What Spark writes to ``offsets/N``."""
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": batch_id, "conf": {}})
    return f"v1\n{head}\n{json.dumps({'at': f'{batch_id}{note}'})}"


class Worker:
    """One of several processes: inside the block, what this one remembers counts."""

    def __init__(self) -> None:
        self._own = WorkerCache()

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    def _swap(self) -> None:
        CACHE.__dict__, self._own.__dict__ = self._own.__dict__, CACHE.__dict__


@dataclass
class Query:
    """A start of a streaming query (a run), or a batch job when ``query_id`` is empty."""

    path: str
    query_id: str = "query"
    run_id: str = field(default_factory=SYSTEM_CLOCK.uuid7)
    keys: str = "k"
    jar: bool = True
    output_mode: str = "append"
    options: dict[str, str] = field(default_factory=dict)
    schema: TableSchema = SCHEMA
    tasks: int = 2
    begun: bool = False
    once: bool = False
    """Whether the jar says that each task ran once."""
    inline: bool = field(default_factory=lambda: Query.inline_by_default)
    """Whether tasks run no Python where the plan lets them."""
    inline_by_default: ClassVar[bool] = False
    planned: SinkPlan = field(init=False)
    planned_with: WriteOptions = field(init=False)

    def facts(self) -> dict[str, str]:
        """What the jar would say."""
        if not self.jar:
            return {}
        facts = {"spark_version": "4.3.0", "shuffle_partitions": str(self.tasks)}
        if self.query_id:
            facts |= {"query_id": self.query_id, "run_id": self.run_id, "output_mode": self.output_mode}
            facts |= {"begun": str(self.begun).lower()}
        return facts

    def parsed(self) -> Any:
        """The options as the sink sees them."""
        facts = {f"__ckpt.{name}": value for name, value in self.facts().items()}
        keys = {"keyColumns": self.keys} if self.keys else {}
        return parse_write_options({"path": self.path, **keys, **self.options, **facts})

    def plan(self, *, overwrite: bool = False, batch_id: int | None = None) -> SinkPlan:
        """What the driver does before the tasks; the jar says which batch it is."""
        overwrite = overwrite or self.output_mode == "complete"
        options = self.parsed()
        if self.jar and batch_id is not None:
            options = replace(options, facts=replace(options.facts, batch=batch_id))
        plan = plan_batch(options, self.schema, streaming=bool(self.query_id), overwrite=overwrite)
        self.planned, self.planned_with = plan, options
        return plan.packed()

    def write(self, plan: SinkPlan, batch_id: int, rows: pa.Table) -> list[Any]:
        """What the tasks do; call it twice for a batch whose tasks all ran twice."""
        parts = self.split(plan, rows)
        if not (self.inline and self.jar and self.query_id):
            return [self.task(plan, batch_id, part, at) for at, part in enumerate(parts)]
        allowed = plan_inline(self.planned, self.planned_with)
        return [self.attempt(allowed, plan, batch_id, part, at) for at, part in enumerate(parts)]

    def attempt(
        self, allowed: InlinePlan, plan: SinkPlan, batch_id: int, rows: pa.Table, at: int
    ) -> StagedPartition | InlineRows:
        """One attempt of one task as the jar runs it: with Python only if it must be."""
        if at in allowed.in_python or rows.nbytes > allowed.task_bytes:
            return self.task(plan, batch_id, rows, at)
        return InlineRows(at, stream_of(rows))

    def split(self, plan: SinkPlan, rows: pa.Table) -> list[pa.Table]:
        """The rows of each task, as Spark's own distribution brings them."""
        table = plan.table
        if not table.routed:
            return [
                rows.filter(pa.array(np.arange(rows.num_rows) % self.tasks == at))
                for at in range(self.tasks)
            ]
        owners = vnodes_of([rows.column(key) for key in table.keys], table.vnodes) % table.partitions
        return [rows.filter(pa.array(owners == at)) for at in range(table.partitions)]

    def task(self, plan: SinkPlan, batch_id: int, rows: pa.Table, at: int) -> StagedPartition:
        """One attempt of one task."""
        options = self.parsed()
        facts = TaskFacts(at, batch_id if self.query_id else -1, self.query_id, self.run_id)
        task = SinkTask(plan, facts, open_store(options.shared), options.compression)
        return task.run(iter(rows.to_batches(max_chunksize=3)))

    def commit(
        self, messages: Sequence[object], batch_id: int, *, note: str = "", offsets: str = ""
    ) -> CheckpointManifest:
        """What the driver does after the tasks."""
        if self.jar:
            text = offsets or offsets_text(batch_id, note)
            fields = {**self.facts(), "offsets": text if self.query_id else ""}
            fields["once"] = str(self.once).lower()
            fields["batch"] = str(batch_id)
            messages = [*messages, DriverFacts(facts_from_fields(fields))]
        run_id = None if self.query_id else self.run_id
        if self.inline and any(isinstance(message, InlineRows) for message in messages):
            messages = run_inline(self.parsed(), self.planned, messages)
        manifest = commit_batch(self.parsed(), messages, run_id=run_id)
        self.begun = True
        return manifest

    def epoch(
        self,
        batch_id: int,
        pairs: Sequence[tuple[int | None, int]],
        *,
        overwrite: bool = False,
        note: str = "",
    ) -> CheckpointManifest:
        """A whole batch."""
        plan = self.plan(overwrite=overwrite, batch_id=batch_id if self.query_id else None)
        return self.commit(self.write(plan, batch_id, rows_from(pairs)), batch_id, note=note)


def stream_of(rows: pa.Table) -> bytes:
    """Rows as the jar sends them; nothing if there are none."""
    if not rows.num_rows:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows, max_chunksize=3)
    return bytes(sink.getvalue().to_pybytes())


def read_rows(path: str, **options: str) -> list[dict[str, Any]]:
    """The table's rows, read without Spark, in any order."""
    found = read_table(parse_read_options({"path": path, **options}))
    opened = found.opened
    artifacts = ArtifactReader(opened.store, store_id=opened.store_id, cipher=opened.cipher)
    reader = ChainReader(artifacts, found.table)
    rows: list[dict[str, Any]] = []
    for chain in found.chains():
        rows += reader.rows(chain).to_pylist()
    return rows


def read_pairs(path: str, **options: str) -> list[tuple[int | None, int]]:
    """The same as sorted pairs."""
    found = [(row["k"], row["v"]) for row in read_rows(path, **options)]
    return sorted(
        found, key=lambda pair: (pair[0] is not None, *(pair if pair[0] is not None else (0, pair[1])))
    )
