"""What tasks without Python have sent, done on the driver: the code of the tasks, and one pack for all.

Only the messages of attempts that Spark has committed come here: nothing is uploaded for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.history.artifact_reader import ArtifactReader, WantedArtifact
from pyspark_checkpoint.sink.query import TaskFacts
from pyspark_checkpoint.sink.task import DriverFacts, InlineRows, SinkTask, stage_items
from pyspark_checkpoint.sink.worker_cache import CACHE, RecentArtifacts, open_store, store_key

if TYPE_CHECKING:
    from pyspark_checkpoint.sink.batch_plan import SinkPlan
    from pyspark_checkpoint.sink.table_options import WriteOptions


def run_inline(options: WriteOptions, plan: SinkPlan | None, messages: Sequence[object]) -> list[object]:
    """The messages of a batch as if each task had run Python. Makes durable what the inline ones sent."""
    inline = sorted((m for m in messages if isinstance(m, InlineRows)), key=lambda m: m.partition)
    if not inline:
        return list(messages)
    facts = next((m.facts for m in messages if isinstance(m, DriverFacts)), None)
    if plan is None or facts is None:
        raise RefusedError(
            "the plan of the batch did not come with the rows of its tasks",
            hint="nothing was committed; this is a fault of the jar or of its Spark version",
        )
    store = open_store(options.shared)
    recent = CACHE.recent.get((*store_key(options.shared), plan.store_id), RecentArtifacts)
    tasks = [
        SinkTask(
            plan,
            TaskFacts(message.partition, facts.batch, facts.query_id, facts.run_id),
            store,
            options.compression,
            known=recent,
        )
        for message in inline
    ]
    wanted = [want for task in tasks for want in task.wanted() if recent.find(want.ref) is None]
    _read_ahead(recent, ArtifactReader(store, store_id=plan.store_id, cipher=plan.cipher), wanted)
    rows = _rows(plan, inline)
    encoded = [task.encode(iter(batches)) for task, batches in zip(tasks, rows, strict=True)]
    items = [item for one in encoded for item in one.items]
    staged = stage_items(plan, store, items, SYSTEM_CLOCK)
    for item, ref in zip(items, staged.refs, strict=True):
        recent.put(ref, item.data)
    refs = iter(staged.refs)
    parts = [
        task.message(one, [next(refs) for _ in one.items]) for task, one in zip(tasks, encoded, strict=True)
    ]
    parts[0] = replace(parts[0], plan=plan.returned(), requests=staged.requests)
    return [*parts, *(m for m in messages if not isinstance(m, InlineRows))]


def _read_ahead(recent: RecentArtifacts, reader: ArtifactReader, wanted: Sequence[WantedArtifact]) -> None:
    """Read what the compactions of all partitions need together: neighbours lie in one pack."""
    for want, data in zip(wanted, reader.read_many(wanted), strict=True):
        recent.put(want.ref, data)


def _rows(plan: SinkPlan, inline: Sequence[InlineRows]) -> list[list[pa.RecordBatch]]:
    """The rows by task. Rows that belong to no partition become one artifact, of the first task."""
    rows = [list(pa.ipc.open_stream(message.data)) if message.data else [] for message in inline]
    if plan.table.routed:
        return rows
    return [[batch for batches in rows for batch in batches], *([] for _ in rows[1:])]
