"""One task of a batch: its rows become one artifact, its chain is compacted when due, all in one PUT.

Spark pickles what a task returns, and what the jar adds to it, and unpickles both for the commit:
``StagedPartition``, ``InlineRows`` and ``DriverFacts`` are all that travels from ``write`` to ``commit``,
and the plan, if tasks without Python sent their rows: then ``inline_tasks`` runs this code on the driver.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import orjson
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_checkpoint.capture.upload import UploadTarget
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import Unsupported
from pyspark_checkpoint.format.artifact import ArtifactRef, ColumnBounds
from pyspark_checkpoint.format.keys import CheckpointId
from pyspark_checkpoint.format.manifest import RequestCount
from pyspark_checkpoint.format.manifest_parts import TableMode
from pyspark_checkpoint.format.pack import PackBounds
from pyspark_checkpoint.history.artifact_reader import ArtifactReader, KnownArtifacts, WantedArtifact
from pyspark_checkpoint.history.staging import Staged, StagedItem, stage
from pyspark_checkpoint.sink.batch_plan import SinkPlan
from pyspark_checkpoint.sink.chain import Chain, ChainReader, plan_chain_compaction
from pyspark_checkpoint.sink.query import TaskFacts, WriterFacts, facts_from_fields
from pyspark_checkpoint.sink.state_task import (
    CollectedState,
    CoveredFile,
    collect_state,
)
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.table.bounds import MIN_BOUNDED_BYTES, BoundsOfRows, bounded_columns, bounds_of
from pyspark_checkpoint.table.codec import (
    Compression,
    DeltaWriter,
    arrow_size,
    encode_delta,
    encode_snapshot,
    recorded_size,
)
from pyspark_checkpoint.table.compaction import CompactionPlan, level_name
from pyspark_checkpoint.table.conform import conform
from pyspark_checkpoint.table.merge import delta_schema, mark_deletes, one_row_per_key
from pyspark_checkpoint.table.murmur3 import spark_hash
from pyspark_checkpoint.table.vnode import owners_of

_ONE_OBJECT = PackBounds(
    max_inline_bytes=0, max_inline_total_bytes=0, pack_target_bytes=1 << 62, min_alone_bytes=1 << 62
)


@dataclass(frozen=True)
class Rewritten:
    """An artifact that takes the place of a chain's artifacts from ``first`` up to ``end``.

    Positions count the chain without the epoch that is being written.
    """

    first: int
    end: int
    ref: ArtifactRef


@dataclass(frozen=True)
class StagedPartition(WriterCommitMessage):
    """What one task has made durable. ``plan`` comes with partition 0 only: it is the same for all."""

    task: TaskFacts
    epoch: int
    parent_sha256: str
    ref: ArtifactRef | None
    rewritten: Rewritten | None
    requests: RequestCount
    plan: SinkPlan | None
    state: tuple[CoveredFile, ...] = ()
    """The state files of this task's share, new and known ones."""


@dataclass(frozen=True)
class InlineRows(WriterCommitMessage):
    """The rows of a task that ran no Python: a stream of Arrow batches, empty if there are none."""

    partition: int
    data: bytes


def inline_rows(partition: str, data: bytes) -> InlineRows:
    """Read the message of a task without Python; Spark unpickles a call of this."""
    return InlineRows(int(partition), data)


@dataclass(frozen=True)
class DriverFacts(WriterCommitMessage):
    """What only the JVM's driver knows."""

    facts: WriterFacts


def query_facts(text: str) -> DriverFacts:
    """Read the message that the jar adds to those of the tasks; Spark unpickles a call of this."""
    fields = {str(name): str(value) for name, value in orjson.loads(text).items()}
    return DriverFacts(facts_from_fields(fields))


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """A part of the chain, from ``first`` up to ``end``, as the item that takes its place."""

    first: int
    end: int
    item: StagedItem


@dataclass(frozen=True, slots=True)
class EncodedTask:
    """What a task has to make durable of the table."""

    rows: StagedItem | None
    rewrite: _Rewrite | None

    @property
    def items(self) -> list[StagedItem]:
        """The new rows, then what takes the place of a part of the chain; whichever there is."""
        rewritten = None if self.rewrite is None else self.rewrite.item
        return [item for item in (self.rows, rewritten) if item is not None]


class SinkTask:
    """One attempt of one task; ``known`` are artifacts that need not be read."""

    def __init__(
        self,
        plan: SinkPlan,
        task: TaskFacts,
        store: ObjectStore,
        compression: Compression,
        clock: Clock = SYSTEM_CLOCK,
        *,
        known: KnownArtifacts | None = None,
    ) -> None:
        self._known = known
        self._plan = plan.of_query(task.query_id)
        self._table = self._plan.table
        self._task = task
        self._store = store
        self._compression = compression
        self._clock = clock
        self._epoch = self._plan.epoch_of(task.batch_id)
        self._bounded = bounded_columns(self._table.schema)

    def run(self, batches: Iterator[pa.RecordBatch]) -> StagedPartition:
        """Drain the rows, make everything durable, and say what it was.

        The rows go first: when they are read to their end, Spark has written the state of this batch.
        """
        encoded = self.encode(batches)
        state = self._collect_state()
        staged = stage_items(self._plan, self._store, [*encoded.items, *state.items], self._clock)
        count = len(encoded.items)
        return replace(
            self.message(encoded, staged.refs[:count]),
            requests=RequestCount.total([state.requests, staged.requests]),
            plan=self._plan.returned() if self._task.partition == 0 else None,
            state=state.all_covered(staged.refs[count:]),
        )

    def encode(self, batches: Iterator[pa.RecordBatch]) -> EncodedTask:
        """The rows as bytes, checked, and the rewritten part of the chain if it is due."""
        return EncodedTask(self._encode(batches), self._rewrite())

    def message(self, encoded: EncodedTask, refs: Sequence[ArtifactRef]) -> StagedPartition:
        """What the commit is told once the items of ``encoded`` are durable at ``refs``."""
        rewrite = encoded.rewrite
        return StagedPartition(
            task=self._task,
            epoch=self._epoch,
            parent_sha256=self._plan.parent_sha256,
            ref=None if encoded.rows is None else refs[0],
            rewritten=None if rewrite is None else Rewritten(rewrite.first, rewrite.end, refs[-1]),
            requests=RequestCount(),
            plan=None,
        )

    def wanted(self) -> list[WantedArtifact]:
        """What ``encode`` will read to compact."""
        chain, compaction = self._compaction()
        refs = () if compaction is None else chain.refs[compaction.first : compaction.end]
        return [WantedArtifact(ref, self._table.operator, chain.partition) for ref in refs]

    # --- rows ----------------------------------------------------------------------------------------

    def _encode(self, batches: Iterator[pa.RecordBatch]) -> StagedItem | None:
        """The epoch's rows; None if there are none."""
        incoming = self._plan.incoming.arrow()
        tables = (conform(pa.Table.from_batches([batch]), incoming) for batch in batches)
        if self._plan.replaces or self._table.sequence_column or self._table.op_column:
            return self._encode_whole(tables)
        return self._encode_stream(tables)

    def _encode_stream(self, tables: Iterator[pa.Table]) -> StagedItem | None:
        """Compress while rows still arrive; only the keys are kept, to see that each is there once."""
        schema, keys = self._table.schema.arrow(), list(self._table.keys)
        sink, kept = io.BytesIO(), []
        writer, bounds = DeltaWriter(sink, schema, self._compression), BoundsOfRows(self._bounded)
        for rows in tables:
            conformed = conform(rows, schema)
            writer.write(conformed)
            bounds.add(conformed)
            if keys:
                kept.append(rows.select(keys))
        writer.close()
        if not writer.rows:
            return None
        if keys:
            self._check_keys(pa.concat_tables(kept))
        data = sink.getvalue()
        found = bounds.bounds() if len(data) >= MIN_BOUNDED_BYTES else ()
        return self._item(data, self._epoch, arrow_size(data), found, is_delta=True)

    def _encode_whole(self, tables: Iterator[pa.Table]) -> StagedItem | None:
        parts = [table for table in tables if table.num_rows]
        if not parts:
            return None
        rows = pa.concat_tables(parts)
        if self._table.op_column:
            rows = mark_deletes(rows, self._table.op_column)
        rows = conform(rows, delta_schema(self._table.schema.arrow(), deletes=bool(self._table.op_column)))
        if self._table.keys:
            rows = self._check_keys(rows)
        is_delta = not self._plan.replaces
        data = (encode_delta if is_delta else encode_snapshot)(rows, self._compression)
        return self._item_of(rows, data, self._epoch, is_delta=is_delta)

    def _check_keys(self, rows: pa.Table) -> pa.Table:
        """One row per key, and this partition's keys only: a row elsewhere would never be found again."""
        keys = list(self._table.keys)
        hashes = spark_hash([rows.column(key) for key in keys])
        if self._table.routed:
            owners = owners_of(hashes, self._table.partitions)
            strangers = owners[owners != self._task.partition]
            if len(strangers):
                raise Unsupported(
                    f"{len(strangers)} rows came to partition {self._task.partition}, and the first of "
                    f"them belongs to partition {strangers[0]}",
                    hint="this is a fault of the jar or of its Spark version; please report it",
                )
        return one_row_per_key(rows, keys, self._table.sequence_column, hashes=hashes)

    # --- the chain -----------------------------------------------------------------------------------

    def _rewrite(self) -> _Rewrite | None:
        """What takes the place of a part of the chain: by compaction, or because of a repartition."""
        plan = self._plan
        artifacts = ArtifactReader(
            self._store, store_id=plan.store_id, cipher=plan.cipher, known=self._known
        )
        reader = ChainReader(artifacts, self._table)
        if plan.old_partitions is not None and not plan.replaces:
            return self._repartition(reader, plan.old_partitions)
        chain, compaction = self._compaction()
        if compaction is None:
            return None
        rows = reader.merged(chain, compaction)
        is_delta = compaction.level is not None
        encode = encode_delta if is_delta and self._table.mode is TableMode.UPSERT else encode_snapshot
        data = encode(rows, self._compression)
        newest = max(ref.epoch for ref in chain.refs[compaction.first : compaction.end])
        name = level_name(compaction.level or 0)
        item = self._item_of(rows, data, newest, is_delta=is_delta, name=name)
        return _Rewrite(compaction.first, compaction.end, item)

    def _compaction(self) -> tuple[Chain, CompactionPlan | None]:
        """The chain of this partition, and what of it is to be rewritten now."""
        plan, partition = self._plan, self._task.partition
        chain = Chain(partition, plan.chains.get(partition, ())).before(self._epoch)
        # A first attempt may have died of its compaction, which can wait.
        if plan.replaces or plan.old_partitions is not None or self._task.attempt:
            return chain, None
        return chain, plan_chain_compaction(chain, self._table, self._epoch, plan.max_deltas)

    def _repartition(self, reader: ChainReader, old_partitions: int) -> _Rewrite:
        chains = [Chain(number, refs).before(self._epoch) for number, refs in self._plan.chains.items()]
        rows = reader.repartitioned(chains, self._task.partition, old_partitions)
        data = encode_snapshot(rows, self._compression)
        newest = max((ref.epoch for chain in chains for ref in chain.refs), default=0)
        return _Rewrite(0, 0, self._item_of(rows, data, newest, is_delta=False))

    def _item_of(
        self, rows: pa.Table, data: bytes, epoch: int, *, is_delta: bool, name: str = ""
    ) -> StagedItem:
        """An artifact and the rows that it was encoded from."""
        bounds = bounds_of(rows, self._bounded) if len(data) >= MIN_BOUNDED_BYTES else ()
        return self._item(data, epoch, recorded_size(data, rows), bounds, is_delta=is_delta, name=name)

    def _item(
        self,
        data: bytes,
        epoch: int,
        decoded_bytes: int,
        bounds: tuple[ColumnBounds, ...],
        *,
        is_delta: bool,
        name: str = "",
    ) -> StagedItem:
        return StagedItem(
            data=data,
            is_delta=is_delta,
            epoch=epoch,
            operator=self._table.operator,
            partition=self._task.partition,
            name=name,
            decoded_bytes=decoded_bytes,
            bounds=bounds if len(data) >= MIN_BOUNDED_BYTES else (),
        )

    # --- state, and making it all durable ------------------------------------------------------------

    def _collect_state(self) -> CollectedState:
        plan = self._plan
        if plan.state is None:
            return CollectedState()
        target = UploadTarget(self._store, plan.checkpoint_id, plan.store_id, plan.cipher)
        share = plan.state.share_of(self._task.partition)
        return collect_state(share, self._task, target, self._epoch - self._task.batch_id)


def stage_items(plan: SinkPlan, store: ObjectStore, items: Sequence[StagedItem], clock: Clock) -> Staged:
    """Make all items durable as one object of an attempt of its own."""
    if not items:
        return Staged()
    return stage(
        store,
        CheckpointId(plan.checkpoint_id, clock.uuid7()),
        items,
        store_id=plan.store_id,
        cipher=plan.cipher,
        bounds=_ONE_OBJECT,
        clock=clock,
    )
