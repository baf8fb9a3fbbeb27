"""What a task does: its rows become one artifact, its chain is rewritten if it is time, all in one PUT."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pyspark_checkpoint.capture.upload import UploadTarget
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.keys import CheckpointId
from pyspark_checkpoint.format.manifest_parts import TableMode
from pyspark_checkpoint.format.pack import PackBounds
from pyspark_checkpoint.history.artifact_reader import ArtifactReader
from pyspark_checkpoint.history.staging import Staged, StagedItem, stage
from pyspark_checkpoint.sink.batch_plan import SinkPlan
from pyspark_checkpoint.sink.messages import Rewritten, StagedPartition
from pyspark_checkpoint.sink.partition import Chain, ChainReader, plan_chain_compaction
from pyspark_checkpoint.sink.query import TaskFacts
from pyspark_checkpoint.sink.state_task import TakenState, add_requests, take_state
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.table.codec import (
    Compression,
    DeltaWriter,
    arrow_size,
    encode_delta,
    encode_snapshot,
    recorded_size,
)
from pyspark_checkpoint.table.compaction import level_name
from pyspark_checkpoint.table.conform import conform
from pyspark_checkpoint.table.merge import delta_schema, mark_deletes, one_row_per_key
from pyspark_checkpoint.table.murmur3 import spark_hash
from pyspark_checkpoint.table.vnode import owners_of

_ONE_OBJECT = PackBounds(
    max_inline_bytes=0, max_inline_total_bytes=0, pack_target_bytes=1 << 62, min_alone_bytes=1 << 62
)


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """A part of the chain, from ``first`` up to ``end``, as the item that takes its place."""

    first: int
    end: int
    item: StagedItem


@dataclass(frozen=True, slots=True)
class _Encoded:
    """The rows of an epoch as bytes, how many rows they are, and what they take once they are decoded."""

    data: bytes
    rows: int
    decoded_bytes: int


class SinkTask:
    """One attempt of one task."""

    def __init__(
        self,
        plan: SinkPlan,
        task: TaskFacts,
        store: ObjectStore,
        compression: Compression,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        plan = plan.of_query(task.query_id)
        self._plan = plan
        self._table = plan.table
        self._task = task
        self._store = store
        self._compression = compression
        self._clock = clock
        self._epoch = plan.epoch_of(task.batch_id)

    def run(self, batches: Iterator[pa.RecordBatch]) -> StagedPartition:
        """Drain the rows, make everything durable, and say what it was."""
        encoded = self._encode(batches)
        rewrite = self._rewrite()
        state = self._take_state()
        items = [] if encoded is None else [self._item(encoded)]
        if rewrite is not None:
            items.append(rewrite.item)
        staged = self._stage([*items, *state.items])
        refs = list(staged.refs[: len(items)])
        return StagedPartition(
            task=self._task,
            epoch=self._epoch,
            parent_sha256=self._plan.parent_sha256,
            rows=0 if encoded is None else encoded.rows,
            ref=None if encoded is None else refs[0],
            rewritten=None if rewrite is None else Rewritten(rewrite.first, rewrite.end, refs[-1]),
            requests=add_requests([state.requests, staged.requests]),
            plan=self._plan.returned() if self._task.partition == 0 else None,
            state=state.all_covered(staged.refs[len(items) :]),
        )

    def _take_state(self) -> TakenState:
        """The rows are read to their end: what Spark keeps of this batch is written by now."""
        plan = self._plan
        if plan.state is None:
            return TakenState()
        target = UploadTarget(self._store, plan.number, plan.store_id, plan.cipher)
        share = plan.state.share_of(self._task.partition)
        return take_state(share, self._task, target, self._epoch - self._task.batch_id)

    def _item(self, encoded: _Encoded) -> StagedItem:
        return StagedItem(
            data=encoded.data,
            is_delta=not self._plan.replaces,
            epoch=self._epoch,
            operator=self._table.operator,
            partition=self._task.partition,
            decoded_bytes=encoded.decoded_bytes,
        )

    def _stage(self, items: list[StagedItem]) -> Staged:
        if not items:
            return Staged()
        return stage(
            self._store,
            CheckpointId(self._plan.number, self._clock.uuid7()),
            items,
            store_id=self._plan.store_id,
            cipher=self._plan.cipher,
            bounds=_ONE_OBJECT,
            clock=self._clock,
        )

    def _encode(self, batches: Iterator[pa.RecordBatch]) -> _Encoded | None:
        """The epoch's rows as bytes; None if there are none."""
        incoming = self._plan.incoming.arrow()
        tables = (conform(pa.Table.from_batches([batch]), incoming) for batch in batches)
        if self._plan.replaces or self._table.sequence_column or self._table.op_column:
            return self._encode_whole(tables, incoming)
        return self._encode_stream(tables)

    def _encode_stream(self, tables: Iterator[pa.Table]) -> _Encoded | None:
        """Compress while rows still arrive; only the keys are kept, to see that each is there once."""
        schema, keys = self._table.schema.arrow(), list(self._table.keys)
        sink, kept = io.BytesIO(), []
        writer = DeltaWriter(sink, schema, self._compression)
        for rows in tables:
            writer.write(conform(rows, schema))
            if keys:
                kept.append(rows.select(keys))
        writer.close()
        if not writer.rows:
            return None
        if keys:
            self._check_keys(pa.concat_tables(kept))
        data = sink.getvalue()
        return _Encoded(data, writer.rows, arrow_size(data))

    def _encode_whole(self, tables: Iterator[pa.Table], incoming: pa.Schema) -> _Encoded | None:
        parts = [table for table in tables if table.num_rows]
        if not parts:
            return None
        rows = pa.concat_tables(parts) if parts else incoming.empty_table()
        if self._table.op_column:
            rows = mark_deletes(rows, self._table.op_column)
        rows = conform(rows, delta_schema(self._table.schema.arrow(), deletes=bool(self._table.op_column)))
        if self._table.keys:
            rows = self._check_keys(rows)
        encode = encode_snapshot if self._plan.replaces else encode_delta
        data = encode(rows, self._compression)
        return _Encoded(data, rows.num_rows, recorded_size(data, rows))

    def _check_keys(self, rows: pa.Table) -> pa.Table:
        """One row per key, and this partition's keys only: a row elsewhere would never be found again."""
        keys = list(self._table.keys)
        hashes = spark_hash([rows.column(key) for key in keys])
        if self._table.routed:
            owners = owners_of(hashes, self._table.partitions)
            strangers = owners[owners != self._task.partition]
            if len(strangers):
                raise RefusedError(
                    f"{len(strangers)} rows came to partition {self._task.partition}, and the first of "
                    f"them belongs to partition {strangers[0]}",
                    hint="this is a fault of the jar or of its Spark version; please report it",
                )
        return one_row_per_key(rows, keys, self._table.sequence_column, hashes=hashes)

    def _rewrite(self) -> _Rewrite | None:
        if self._plan.replaces:
            return None
        cipher, store_id = self._plan.cipher, self._plan.store_id
        reader = ChainReader(ArtifactReader(self._store, store_id=store_id, cipher=cipher), self._table)
        if self._plan.old_partitions is not None:
            return self._split_anew(reader, self._plan.old_partitions)
        if self._task.attempt:
            return None  # the first one may have died of it; the chain can wait for its next turn
        refs = self._plan.chains.get(self._task.partition, ())
        chain = Chain(self._task.partition, refs).before(self._epoch)
        roll = plan_chain_compaction(chain, self._table, self._epoch, self._plan.max_deltas)
        if roll is None:
            return None
        rows = reader.merged(chain, roll)
        covered = max(ref.epoch for ref in chain.refs[roll.first : roll.end])
        keyed = self._table.mode is TableMode.UPSERT
        as_delta = keyed and roll.level is not None
        data = (
            encode_delta(rows, self._compression) if as_delta else encode_snapshot(rows, self._compression)
        )
        item = StagedItem(
            data=data,
            is_delta=roll.level is not None,
            epoch=covered,
            operator=self._table.operator,
            partition=self._task.partition,
            name=level_name(roll.level or 0),
            decoded_bytes=recorded_size(data, rows),
        )
        return _Rewrite(roll.first, roll.end, item)

    def _split_anew(self, reader: ChainReader, old_partitions: int) -> _Rewrite:
        chains = [Chain(number, refs).before(self._epoch) for number, refs in self._plan.chains.items()]
        rows = reader.split_anew(chains, self._task.partition, old_partitions)
        data = encode_snapshot(rows, self._compression)
        item = StagedItem(
            data=data,
            is_delta=False,
            epoch=max((ref.epoch for chain in chains for ref in chain.refs), default=0),
            operator=self._table.operator,
            partition=self._task.partition,
            decoded_bytes=recorded_size(data, rows),
        )
        return _Rewrite(0, 0, item)
