"""The one way to make a manifest of a query's batch, from parts that are all known. Pure.

The listener gives the batch and what it took from the checkpoint location; the sink gives the batch, its
table, and what it took from the location where state is committed with rows. What both say of one batch
is therefore the same: names and positions of sources, watermarks, sinks, settings, pipeline hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyspark_checkpoint.capture.sink_description import (
    describe_sink,
    sink_identity,
    sink_name,
    sink_store_url,
)
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import (
    DEFAULT_VNODE_COUNT,
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    QueryInfo,
    RequestCount,
)
from pyspark_checkpoint.format.manifest_parts import PlannedBatch, StateRecord, TableRecord
from pyspark_checkpoint.spark_files.fingerprint import pipeline_hash
from pyspark_checkpoint.spark_files.inventory import CapturePlan, OperatorFiles
from pyspark_checkpoint.spark_files.listing import pinned_conf
from pyspark_checkpoint.spark_files.logs import CommitLog, OffsetLog
from pyspark_checkpoint.spark_files.positions import SourcePositions
from pyspark_checkpoint.spark_files.requirements import PARTITIONS
from pyspark_checkpoint.spark_files.state_artifacts import STATE_KIND


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """What is known of a running query besides its checkpoint location."""

    query: QueryInfo
    run_id: str
    sources: tuple[str, ...] = ()
    sink: str = ""
    output_mode: str = ""
    iceberg_location: str = ""
    """Where the sink's table lies, if it is one of Iceberg and the JVM says so."""
    finished_batch: int | None = None
    """The last batch that Spark said was done; None if it has not said so yet."""
    has_ended: bool = False
    """Whether the query runs no more: a history that another run has by then is that run's."""


@dataclass(frozen=True, slots=True)
class CapturedLogs:
    """The logs of the captured batch."""

    offsets: OffsetLog
    commit: CommitLog
    schemas: Mapping[str, str] = field(default_factory=dict)
    """Digests of the operators' schema files, by what is left of their names without ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """A batch of a query: which it is, where its sources stand after it, and where its rows go."""

    epoch: int
    batch_id: int | None
    """None for what a batch job wrote."""
    query: QueryInfo
    sink: str
    """Spark's description of the sink."""
    output_mode: str = ""
    iceberg_location: str = ""
    sources: SourcePositions = field(default_factory=SourcePositions)
    """Empty if they are not known."""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """What Spark says of the sources, by their names."""
    batch_watermark_ms: int | None = None
    next_watermark_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationPart:
    """What was taken from the checkpoint location, all of it durable: Spark's own state and logs."""

    operators: Mapping[str, OperatorSnapshotEntry]
    files: tuple[ArtifactRef, ...]
    conf: Mapping[str, str]
    schemas: Mapping[str, str]
    requests: RequestCount
    location: str = ""
    planned: PlannedBatch | None = None
    """The batch that Spark has planned beyond this one; its files are among ``files``."""
    record: StateRecord | None = None
    """For state that is committed with a table's rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """The table of a sink with the rows of the batch, all of them durable."""

    number: int
    """The checkpoint that the batch was planned for."""
    entry: OperatorSnapshotEntry
    record: TableRecord
    requests: RequestCount


def build_manifest(
    batch: BatchPart, location: LocationPart | None = None, table: TablePart | None = None
) -> CheckpointManifest:
    """Put a manifest together; ``Run.publish`` gives it its place in the history.

    Refused if the table has the name of an operator of the query.
    """
    name = sink_name(batch.sink) if table is None else table.record.operator
    query, operators, cost = batch.query, dict[str, OperatorSnapshotEntry](), RequestCount()
    if table is not None:
        operators[name] = table.entry
        cost = table.requests
    if location is not None:
        if operators.keys() & location.operators.keys():
            raise RefusedError(
                f"the table is called {name!r}, and so is an operator of the query",
                hint="choose another name with the option operator, or set the option state to off",
            )
        operators |= location.operators
        cost = RequestCount.total([cost, location.requests])
        where = query.checkpoint_location or location.location
        query = replace(query, conf=dict(location.conf), checkpoint_location=where)
    return CheckpointManifest(
        checkpoint_id=0 if table is None else table.number,
        epoch=batch.epoch,
        batch_id=batch.batch_id,
        query=query,
        operators=operators,
        files=() if location is None else location.files,
        source_offsets=batch.sources.connectors(batch.epoch, batch.descriptions),
        source_names=batch.sources.names,
        batch_watermark_ms=batch.batch_watermark_ms,
        next_watermark_ms=batch.next_watermark_ms,
        sink_names=(name,),
        sink_epochs={name: batch.epoch},
        sinks=(describe_sink(batch.sink, query.id, batch.batch_id, batch.iceberg_location),),
        table_store_checkpoint_path=None if table is not None else sink_store_url(batch.sink),
        pipeline_hash=None if location is None else _pipeline_hash(batch, location),
        vnode_count=DEFAULT_VNODE_COUNT if table is None else table.record.vnodes or DEFAULT_VNODE_COUNT,
        partition_count=_partition_count(location, table),
        table=None if table is None else table.record,
        state=None if location is None else location.record,
        planned=None if location is None else location.planned,
        requests=cost,
    )


def draft_manifest(
    plan: CapturePlan,
    facts: QueryFacts,
    logs: CapturedLogs | None,
    refs: Mapping[str, ArtifactRef],
    requests: RequestCount,
) -> CheckpointManifest:
    """The manifest of a captured batch; ``refs`` says where each file of the plan is.

    Without logs there was no batch yet: all that is known is the plan of the first one.
    """
    files = tuple(refs[file.path] for file in plan.files)
    if logs is None:
        start = BatchPart(epoch=0, batch_id=None, query=facts.query, sink=facts.sink)
        held = LocationPart(
            operators={}, files=files, conf={}, schemas={}, requests=requests, planned=plan.planned
        )
        return replace(build_manifest(start, held), pipeline_hash=None)
    sources = SourcePositions.of_log(logs.offsets)
    batch = BatchPart(
        epoch=plan.batch_id,
        batch_id=plan.batch_id,
        query=facts.query,
        sink=facts.sink,
        output_mode=facts.output_mode,
        iceberg_location=facts.iceberg_location,
        sources=sources,
        descriptions=dict(zip(sources.names, facts.sources, strict=False)),
        batch_watermark_ms=logs.offsets.watermark_ms,
        next_watermark_ms=logs.commit.next_watermark_ms,
    )
    location = LocationPart(
        operators=operator_entries(plan.operators, refs),
        files=files,
        conf=pinned_conf(logs.offsets.conf, refs),
        schemas=logs.schemas,
        requests=requests,
        planned=plan.planned,
    )
    return build_manifest(batch, location)


def described_by(facts: QueryFacts, offsets: OffsetLog, head: CheckpointManifest) -> QueryFacts:
    """The facts; where no event has told of the sources yet, with what the run before knew of them."""
    if facts.sources or head.query.id != facts.query.id:
        return facts
    known = (head.source_offsets.get(name) for name in SourcePositions.of_log(offsets).names)
    found = [source.metadata.get("description") for source in known if source is not None]
    told = tuple(text for text in found if text is not None)
    return replace(facts, sources=told) if len(told) == len(offsets.offsets) else facts


def operator_entries(
    operators: Iterable[OperatorFiles], refs: Mapping[str, ArtifactRef]
) -> dict[str, OperatorSnapshotEntry]:
    """The operators of Spark as a manifest names them; ``refs`` says where each file is."""
    return {
        operator.name: OperatorSnapshotEntry(
            tuple(
                PartitionSnapshotEntry(partition, tuple(refs[file.path] for file in files))
                for partition, files in sorted(operator.partitions.items())
            ),
            kind=STATE_KIND,
        )
        for operator in operators
    }


def _pipeline_hash(batch: BatchPart, location: LocationPart) -> int:
    """From what both producers know of every batch: Spark describes sources only after the first one."""
    return pipeline_hash(
        location.operators,
        location.schemas,
        batch.sources.names,
        sink_identity(batch.sink),
        batch.output_mode,
    )


def _partition_count(location: LocationPart | None, table: TablePart | None) -> int:
    if table is not None:
        return len(table.entry.partitions)
    return 0 if location is None else int(location.conf.get(PARTITIONS, "0") or 0)
