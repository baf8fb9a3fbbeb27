"""What a batch will do to the table, decided on the driver before the tasks run. Pure.

The plan says which table it is, which checkpoint the batch will become, and which chains of artifacts
tasks may rewrite. Everything that cannot work is refused here, before any row is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark_checkpoint.errors import Incompatible, SettingsError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import TableMode
from pyspark_checkpoint.history.head import Head
from pyspark_checkpoint.history.store_cipher import DataKeyCipher
from pyspark_checkpoint.sink.state_task import StatePlan
from pyspark_checkpoint.sink.table_options import WriteOptions
from pyspark_checkpoint.table.compaction import is_compaction_due
from pyspark_checkpoint.table.info import TableInfo
from pyspark_checkpoint.table.schema import (
    TableSchema,
    check_keys,
    check_schema,
    evolve_schema,
    resolve_columns,
)
from pyspark_checkpoint.table.types import has_order
from pyspark_checkpoint.table.vnode import check_layout, default_vnodes

JAR = "io.github.pyspark-checkpoint:ckpt-spark_2.13"
BATCH_QUERY_ID = "batch"
"""The query id of what a batch job wrote: no streaming query has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """One batch. Travels to the tasks, so it holds no more than they need."""

    table: TableInfo
    incoming: TableSchema
    """The columns that the query gives: the table's, and the operation column."""
    checkpoint_id: int
    """What the batch becomes."""
    parent_sha256: str
    parent_epoch: int
    """-1 for a new table."""
    store_id: str
    max_deltas: int
    replaces: bool = False
    """Whether the batch replaces all rows."""
    follows: bool = True
    """Whether epochs are the query's batch numbers; else the batch becomes the epoch after the parent's."""
    owner: str = ""
    """The query that wrote the table, if another one may take it over, and only tasks know which it is."""
    chains: Mapping[int, tuple[ArtifactRef, ...]] = field(default_factory=dict)
    """By partition, what tasks may have to rewrite."""
    old_partitions: int | None = None
    """The number of partitions before this batch, if it repartitions the table."""
    cipher: DataKeyCipher | None = None
    state: StatePlan | None = None
    """How Spark's own state is committed with the rows; None if it is not."""

    def of_query(self, query_id: str) -> SinkPlan:
        """The plan once it is known whose batch it is: another query's than the owner's takes over."""
        if not self.owner or not query_id or query_id == self.owner:
            return self
        return replace(self, table=replace(self.table, first_epoch=0), follows=False, owner="")

    def packed(self) -> SinkPlan:
        """The plan as it travels to the tasks."""
        return self if self.state is None else replace(self, state=self.state.packed())

    def returned(self) -> SinkPlan:
        """The plan as a task sends it back: without what the driver knows better by then."""
        state = None if self.state is None else replace(self.state, held={}, shares={})
        return replace(self, chains={}, state=state)

    def epoch_of(self, batch_id: int) -> int:
        """The epoch that Spark's batch ``batch_id`` becomes."""
        return self.table.first_epoch + batch_id if self.follows else self.parent_epoch + 1


def plan_sink(
    head: Head | None,
    options: WriteOptions,
    schema: TableSchema,
    *,
    streaming: bool,
    overwrite: bool,
    store_id: str,
) -> SinkPlan:
    """Decide what the next batch does to the table that ``head`` records.

    Raises ``Incompatible`` where the query does not fit the table, and ``SettingsError`` where its options
    do not fit each other.
    """
    recorded = _recorded_table(head, options.shared.operator)
    check_schema(schema)
    taking_over = check_owner(head, options, streaming=streaming)
    table = _plan_table(recorded, options, schema, streaming=streaming, overwrite=overwrite)
    if taking_over or not streaming:
        table = replace(table, first_epoch=0)
    replaces = overwrite or table.mode is TableMode.COMPLETE
    old_partitions = None
    if recorded is not None and not replaces and table.mode is TableMode.UPSERT:
        old_partitions = recorded.partitions if recorded.partitions != table.partitions else None
    manifest = None if head is None else head.manifest
    # Without the jar only the tasks know which query this is; it may turn out to be another one.
    may_be_another = options.take_over and not options.facts.query_id
    return SinkPlan(
        table=table,
        incoming=schema,
        checkpoint_id=1 if head is None else head.number + 1,
        parent_sha256="" if head is None else head.sha256,
        parent_epoch=-1 if manifest is None else manifest.epoch,
        store_id=store_id,
        max_deltas=options.max_deltas,
        replaces=replaces,
        follows=streaming and not taking_over,
        owner=manifest.query.id if manifest is not None and may_be_another else "",
        chains={} if replaces or manifest is None else _chains(manifest, table, options, old_partitions),
        old_partitions=old_partitions,
    )


def _recorded_table(head: Head | None, operator: str) -> TableInfo | None:
    """The table that the store holds, None for a new store; a store without a table is refused."""
    if head is None:
        return None
    if head.manifest.table is None:
        raise Incompatible(
            "this store holds checkpoints of a query, not a table", hint="give the table a path of its own"
        )
    table = TableInfo.of_manifest(head.manifest)
    if table.operator != operator:
        raise Incompatible(
            f"the table of this store is called {table.operator!r}, not {operator!r}",
            hint="leave the option operator out, or give the other table a path of its own",
        )
    return table


def check_owner(head: Head | None, options: WriteOptions, *, streaming: bool) -> bool:
    """Whether this query takes the table over from another one; refused unless it was told to."""
    owner = "" if head is None else head.manifest.query.id
    ours = options.facts.query_id if streaming else BATCH_QUERY_ID
    if not ours or not owner or owner == ours:
        return False
    if not options.take_over:
        raise other_owner(owner, ours)
    return True


def other_owner(owner: str, ours: str) -> Incompatible:
    """The refusal of a query that points at another one's table."""
    who, us = (
        "a batch job" if query_id == BATCH_QUERY_ID else f"the streaming query {query_id}"
        for query_id in (owner, ours)
    )
    return Incompatible(
        f"this table was written by {who}, and {us} is another writer",
        hint="give it a path of its own; or set the option takeOver to true, after which the other one "
        "is refused",
    )


def plan_layout(recorded: TableInfo | None, options: WriteOptions) -> tuple[int, int]:
    """How many partitions and vnodes a keyed table has: as recorded, unless told otherwise."""
    if recorded is None or not recorded.vnodes:
        partitions = options.partitions or options.facts.shuffle_partitions or 1
        vnodes = options.vnodes or default_vnodes(partitions)
    else:
        partitions = options.partitions or recorded.partitions
        vnodes = recorded.vnodes
        if options.vnodes not in (None, vnodes):
            raise SettingsError(
                f"the table has {vnodes} vnodes, and that cannot change to {options.vnodes}",
                hint="leave the option vnodes out; a copy of the table may have another number",
            )
    check_layout(partitions, vnodes)
    return partitions, vnodes


def _plan_table(
    recorded: TableInfo | None,
    options: WriteOptions,
    incoming: TableSchema,
    *,
    streaming: bool,
    overwrite: bool,
) -> TableInfo:
    def one_column(name: str | None, option: str) -> str | None:
        return None if name is None else resolve_columns(incoming, [name], option)[0]

    keys = resolve_columns(incoming, options.keys, "keyColumns")
    sequence = one_column(options.sequence_column, "sequenceColumn")
    operation = one_column(options.op_column, "opColumn")
    mode = _mode(options, keys, streaming=streaming, overwrite=overwrite)
    _check_roles(incoming, keys, sequence, operation, mode)
    routed = bool(keys) and options.facts.by_jar
    partitions, vnodes = plan_layout(recorded, options) if routed else (0, 0)
    if options.facts.partitions not in (0, partitions):
        raise Incompatible(
            f"Spark brings the rows to {options.facts.partitions} partitions, the table has {partitions}",
            hint="the table was repartitioned meanwhile; start the query again",
        )
    table = TableInfo(
        operator=options.shared.operator,
        schema=incoming.without([operation] if operation else []),
        mode=mode,
        keys=keys,
        sequence_column=sequence,
        op_column=operation,
        routed=routed,
        partitions=partitions,
        vnodes=vnodes,
        batch=not streaming,
    )
    return table if recorded is None else _continued(recorded, table)


def _continued(recorded: TableInfo, table: TableInfo) -> TableInfo:
    """The table after this batch, if it may follow on the recorded one."""
    if recorded.keys != table.keys:
        raise Incompatible(
            f"the table's keys are ({', '.join(recorded.keys)}), the query's are ({', '.join(table.keys)})",
            hint="set keyColumns to the table's keys in the table's order, or write to another path",
        )
    if recorded.mode is not table.mode:
        raise Incompatible(
            f"the table is in mode {recorded.mode.value}, the query writes in mode {table.mode.value}",
            hint="use the output mode that the table was made with, or write to another path",
        )
    schema = evolve_schema(recorded.schema, table.schema)
    return replace(table, schema=schema, first_epoch=recorded.first_epoch)


def _mode(options: WriteOptions, keys: tuple[str, ...], *, streaming: bool, overwrite: bool) -> TableMode:
    if streaming and overwrite:
        return TableMode.COMPLETE
    if not keys:
        if options.facts.output_mode == "update":
            raise SettingsError(
                "update mode needs the option keyColumns",
                hint="name the columns that tell the rows of the table apart, separated by commas",
            )
        return TableMode.APPEND
    if not options.facts.by_jar:
        raise SettingsError(
            "a table with keys needs the jar, so that Spark brings each row to the partition of its key",
            hint=f"start Spark with --packages {JAR}:<version>, or with the jar that `ckpt jar` prints; "
            "without it ckpt-sink does append without keys, and complete mode",
        )
    return TableMode.UPSERT


def _check_roles(
    schema: TableSchema,
    keys: tuple[str, ...],
    sequence: str | None,
    operation: str | None,
    mode: TableMode,
) -> None:
    check_keys(schema, keys)
    if (sequence or operation) and mode is not TableMode.UPSERT:
        given = "sequenceColumn" if sequence else "opColumn"
        raise SettingsError(
            f"option {given} is for tables with keyColumns, in append or update mode",
            hint=f"leave {given} out, or give keyColumns",
        )
    if operation is not None and operation in (*keys, sequence):
        raise SettingsError(
            f"column {operation} cannot be opColumn and a key or sequence at once",
            hint="name a column for opColumn that has no other purpose",
        )
    if operation is not None and schema.field(operation).spark_type not in ("string", "boolean"):
        raise SettingsError(
            f"opColumn {operation} must be a string or a boolean", hint="cast it, or name another column"
        )
    if sequence is not None and not has_order(schema.field(sequence).spark_type):
        raise SettingsError(
            f"sequenceColumn {sequence} must be of a plain type, which has an order",
            hint="name a column of numbers, texts or times",
        )


def _chains(
    manifest: CheckpointManifest, table: TableInfo, options: WriteOptions, old_partitions: int | None
) -> dict[int, tuple[ArtifactRef, ...]]:
    """The chains that tasks may rewrite: all for a repartition, else those whose compaction may be due.

    The batch repeats the head's epoch, or is the one after it; only the tasks know which.
    """
    entry = manifest.operators.get(table.operator)
    epochs = (manifest.epoch, manifest.epoch + 1)
    return {
        part.partition_id: part.artifacts
        for part in (entry.partitions if entry is not None else ())
        if old_partitions is not None
        or any(is_compaction_due(part.partition_id, epoch, options.max_deltas) for epoch in epochs)
    }
