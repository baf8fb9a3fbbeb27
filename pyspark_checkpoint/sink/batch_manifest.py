"""From the messages of the tasks to the table of the batch, as its manifest names it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_checkpoint.capture.manifest_builder import BatchPart, TablePart
from pyspark_checkpoint.capture.sink_description import CKPT_SINK
from pyspark_checkpoint.errors import RefusedError, StaleAttempt
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    QueryInfo,
    RequestCount,
)
from pyspark_checkpoint.format.manifest_parts import Lineage
from pyspark_checkpoint.format.settled import ListRef
from pyspark_checkpoint.history.head import Head
from pyspark_checkpoint.sink.batch_plan import BATCH_QUERY_ID, SinkPlan
from pyspark_checkpoint.sink.query import WriterFacts
from pyspark_checkpoint.sink.state_task import BY_A_BATCH
from pyspark_checkpoint.sink.task import DriverFacts, StagedPartition
from pyspark_checkpoint.spark_files.logs import decode_offset_log
from pyspark_checkpoint.spark_files.names import offsets_file
from pyspark_checkpoint.spark_files.positions import SourcePositions
from pyspark_checkpoint.table.info import TABLE_KIND
from pyspark_checkpoint.table.lineage import find_lineage, next_lineage

MAX_BOUNDS_IN_MANIFEST = 1_024


@dataclass(frozen=True, slots=True)
class Batch:
    """All messages of one batch, checked to belong together."""

    plan: SinkPlan
    facts: WriterFacts
    epoch: int
    batch_id: int
    parts: tuple[StagedPartition, ...]


def gather(messages: Sequence[object], known: WriterFacts) -> Batch:
    """Join the messages of a batch with what is known of its query."""
    parts = tuple(m for m in messages if isinstance(m, StagedPartition))
    if len(parts) != sum(1 for m in messages if not isinstance(m, DriverFacts)):
        raise RefusedError(
            "a task's message is missing, so that its rows would be lost",
            hint="nothing was committed; Spark runs the batch again when the query is started",
        )
    plan = next((part.plan for part in parts if part.plan is not None), None)
    if plan is None:
        raise RefusedError(
            "no task sent the plan of its batch",
            hint="nothing was committed; Spark runs the batch again when the query is started",
        )
    facts = next((m.facts for m in messages if isinstance(m, DriverFacts)), known)
    task = parts[0].task
    facts = replace(facts, query_id=facts.query_id or task.query_id, run_id=facts.run_id or task.run_id)
    if any(part.parent_sha256 != plan.parent_sha256 or part.epoch != parts[0].epoch for part in parts):
        raise RefusedError(
            "tasks of different batches were committed together",
            hint="nothing was committed; Spark runs the batch again when the query is started",
        )
    return Batch(plan, facts, parts[0].epoch, task.batch_id, parts)


def prepare_table(batch: Batch, head: Head | None, *, is_split: bool = False) -> TablePart:
    """The table as a batch leaves it on top of ``head``.

    ``is_split``: the batches between the two have only repartitioned the state, and had no rows.
    ``StaleAttempt`` if the batch was planned on another head: what its tasks rewrote is not the head's.
    """
    plan, manifest = batch.plan, None if head is None else head.manifest
    if plan.parent_sha256 != ("" if head is None else head.sha256):
        raise StaleAttempt(
            "the table has moved on while the batch ran", hint="start the query again; it plans anew"
        )
    if has_gap(batch, manifest) and not is_split:
        raise _gap(batch, manifest)
    return TablePart(
        number=plan.checkpoint_id,
        entry=OperatorSnapshotEntry(
            keep_bounds(_partitions(batch, manifest)), TABLE_KIND, _base_settled(batch, manifest)
        ),
        record=replace(plan.table, replaces=plan.replaces).record(_lineage(batch, manifest)),
        requests=RequestCount.total([part.requests for part in batch.parts]),
    )


def describe_batch(batch: Batch, head: Head | None, path: str) -> BatchPart:
    """What is known of a batch that goes to the table at ``path``, on top of ``head``."""
    sources, watermark_ms = _sources(batch, None if head is None else head.manifest)
    return BatchPart(
        epoch=batch.epoch,
        batch_id=batch.batch_id if batch.batch_id >= 0 else None,
        query=query_info(batch.facts, batch=batch.plan.table.batch),
        sink=f"{CKPT_SINK} {path}",
        output_mode=batch.facts.output_mode,
        sources=sources,
        batch_watermark_ms=watermark_ms,
    )


def query_info(facts: WriterFacts, *, batch: bool) -> QueryInfo:
    """Who writes, for the manifest."""
    return QueryInfo(
        id=BATCH_QUERY_ID if batch else facts.query_id,
        name=facts.query_name,
        checkpoint_location=facts.checkpoint_location,
        spark_version=facts.spark_version,
        app_name=facts.app_name,
    )


def is_of_last_batch(manifest: CheckpointManifest, facts: WriterFacts) -> bool:
    """Whether a checkpoint is of the batch before the one that is planned, by this very run.

    A run commits its batches in their order, each once: nothing of it can come after such a checkpoint.
    """
    if facts.batch <= 0 or manifest.run_id != facts.run_id or manifest.kind not in BY_A_BATCH:
        return False
    return manifest.batch_id == facts.batch - 1


def has_gap(batch: Batch, manifest: CheckpointManifest | None) -> bool:
    """Whether there are epochs between the table's newest and this one."""
    return manifest is not None and batch.plan.follows and batch.epoch > manifest.epoch + 1


def _gap(batch: Batch, manifest: CheckpointManifest | None) -> RefusedError:
    """Rows of an epoch that never reached the table would be missing for good."""
    newest = -1 if manifest is None else manifest.epoch
    return RefusedError(
        f"the table ends with epoch {newest}, and this batch is epoch {batch.epoch}: the rows in "
        "between are not in the table",
        hint="the checkpoint location is ahead of the store; restore it to the store's epoch with "
        "ckpt restore, or write to another path",
    )


def _partitions(batch: Batch, manifest: CheckpointManifest | None) -> tuple[PartitionSnapshotEntry, ...]:
    chains = _base_chains(batch, manifest)
    for part in batch.parts:
        chain = chains.get(part.task.partition, ())
        if part.rewritten is not None:
            new = part.rewritten
            chain = (*chain[: new.first], new.ref, *chain[new.end :])
        if part.ref is not None:
            chain = (*chain, part.ref)
        chains[part.task.partition] = chain
    # Tasks that only sent their rows to another one's artifact are no partitions of a table without keys.
    named = (number for number in sorted(chains) if chains[number] or batch.plan.table.routed)
    return tuple(PartitionSnapshotEntry(number, chains[number]) for number in named)


def keep_bounds(partitions: tuple[PartitionSnapshotEntry, ...]) -> tuple[PartitionSnapshotEntry, ...]:
    """The same with bounds of the largest artifacts alone, if there are too many for a manifest. Pure.

    The more artifacts a manifest names, the less room it has for them.
    """
    refs = [ref for part in partitions for ref in part.artifacts]
    limit = MAX_BOUNDS_IN_MANIFEST - len(refs) // 10
    found = [(ref.size_bytes, len(ref.bounds)) for ref in refs if ref.bounds]
    if sum(count for _, count in found) <= limit:
        return partitions
    total, smallest = 0, 0
    for size_bytes, count in sorted(found, reverse=True):
        total += count
        if total > limit:
            smallest = size_bytes + 1
            break
    return tuple(
        replace(
            part,
            artifacts=tuple(
                replace(ref, bounds=()) if ref.bounds and ref.size_bytes < smallest else ref
                for ref in part.artifacts
            ),
        )
        for part in partitions
    )


def _base_chains(batch: Batch, manifest: CheckpointManifest | None) -> dict[int, tuple[ArtifactRef, ...]]:
    """What the batch adds to: the head's chains without this epoch's own rows, which it replaces."""
    plan = batch.plan
    if manifest is None or plan.replaces or plan.old_partitions is not None:
        return {}
    entry = manifest.operators.get(plan.table.operator)
    return {
        part.partition_id: tuple(ref for ref in part.artifacts if ref.epoch < batch.epoch)
        for part in (entry.partitions if entry is not None else ())
    }


def _base_settled(batch: Batch, manifest: CheckpointManifest | None) -> tuple[ListRef, ...]:
    """The lists of settled parts that the batch adds to; they have no rows of its own epoch."""
    plan = batch.plan
    if manifest is None or plan.replaces or plan.old_partitions is not None:
        return ()
    entry = manifest.operators.get(plan.table.operator)
    return entry.settled if entry is not None else ()


def _lineage(batch: Batch, manifest: CheckpointManifest | None) -> Lineage:
    """Which epochs the batch's rows follow on."""
    parent = None if manifest is None else find_lineage(manifest)
    rows = [(part.task.partition, part.ref.sha256) for part in batch.parts if part.ref is not None]
    return next_lineage(parent, batch.plan.checkpoint_id, batch.epoch, rows, replaces=batch.plan.replaces)


def _sources(batch: Batch, manifest: CheckpointManifest | None) -> tuple[SourcePositions, int | None]:
    """Where the sources stand after this batch, and the watermark that it used, as far as known.

    When they are known on one side only, a repeated epoch is taken to be the same by its query and
    number alone: the other side's offsets, or none, are taken over.
    """
    if manifest is not None and manifest.epoch == batch.epoch and batch.plan.follows:
        recorded = SourcePositions.of_manifest(manifest)
        if not batch.facts.offsets or not recorded.names:
            return recorded, manifest.batch_watermark_ms
    if not batch.facts.offsets:
        return SourcePositions(), None
    log = decode_offset_log(batch.facts.offsets.encode("utf-8"), offsets_file(batch.batch_id))
    return SourcePositions.of_log(log), log.watermark_ms
