"""Which tasks of a batch may send their rows to the driver instead of running Python. Pure.

A Python task costs some 50 ms of CPU before it does anything. So the jar lets a task with few rows send
them in its commit message, and the driver does for all of them together what each would have done. A task
whose chain has much to compact runs Python; all do if the table is repartitioned or much state is to be
collected, which the executors do in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_checkpoint.sink.batch_plan import SinkPlan
from pyspark_checkpoint.sink.chain import Chain, plan_chain_compaction
from pyspark_checkpoint.sink.table_options import WriteOptions

MOST_STATE_BYTES = 16 * 1024 * 1024
"""New state of the last batch beyond which the tasks collect it."""
MOST_COMPACTED_BYTES = 32 * 1024 * 1024
"""What all compactions of a batch on the driver may read, in memory."""


@dataclass(frozen=True, slots=True)
class InlinePlan:
    """What the jar must know: bytes of rows that a task may send, and the tasks that run Python anyway."""

    task_bytes: int = 0
    in_python: tuple[int, ...] = ()

    def mark(self) -> str:
        """The plan as the jar finds it in the pickled writer; ``InlineWrite.Plan`` reads it."""
        return f"ckpt-inline:{self.task_bytes}:{','.join(map(str, self.in_python))};"


def plan_inline(plan: SinkPlan, options: WriteOptions) -> InlinePlan:
    """Decide for a batch. The sum of what all tasks may send stays below ``inlineBatchBytes``."""
    if plan.old_partitions is not None or _new_state_bytes(plan) > MOST_STATE_BYTES:
        return InlinePlan()
    most = options.inline_batch_bytes // max(1, options.facts.tasks)
    return InlinePlan(min(options.inline_task_bytes, most), tuple(_in_python(plan, options.facts.batch)))


def _new_state_bytes(plan: SinkPlan) -> int:
    """What the batch before has uploaded of Spark's state."""
    if plan.state is None:
        return 0
    head = plan.checkpoint_id - 1
    return sum(ref.size_bytes for ref in plan.state.held.values() if ref.made_by == head)


def _in_python(plan: SinkPlan, batch_id: int) -> list[int]:
    """The partitions whose compaction is too much for the driver."""
    if batch_id < 0:
        return sorted(plan.chains)
    epoch, used, found = plan.epoch_of(batch_id), 0, []
    for partition, refs in sorted(plan.chains.items()):
        chain = Chain(partition, refs).before(epoch)
        compaction = plan_chain_compaction(chain, plan.table, epoch, plan.max_deltas)
        if compaction is None:
            continue
        read = chain.refs[compaction.first : compaction.end]
        size_bytes = sum(max(ref.decoded_bytes, ref.size_bytes) for ref in read)
        if used + size_bytes > MOST_COMPACTED_BYTES:
            found.append(partition)
        else:
            used += size_bytes
    return found
