"""What a manifest says of a query, from Spark's logs and from what its progress events told. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    QueryInfo,
    RequestCount,
)
from pyspark_checkpoint.spark_files.fingerprint import pipeline_hash, without_paths
from pyspark_checkpoint.spark_files.inventory import CapturePlan, OperatorFiles
from pyspark_checkpoint.spark_files.logs import CommitLog, OffsetLog
from pyspark_checkpoint.spark_files.requirements import PARTITIONS
from pyspark_checkpoint.spark_files.state_artifacts import STATE_KIND

_CHECKPOINT_SINK = re.compile(r"ckpt-sink (\S.*)")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.$=-]+")


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """What is known of a running query besides its checkpoint location."""

    query: QueryInfo
    run_id: str
    sources: tuple[str, ...] = ()
    sink: str = ""
    output_mode: str = ""
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


def source_names(offsets: OffsetLog) -> tuple[str, ...]:
    """How the sources are called in a manifest: by their names, else by their places."""
    return offsets.names or tuple(f"source-{index}" for index in range(len(offsets.offsets)))


def sink_name(description: str) -> str:
    """How a sink is called in a manifest: its description without paths and addresses."""
    name = _NOT_IN_A_NAME.sub("-", without_paths(description)).strip("-. ")
    return name[-100:] or "sink"


def sink_store_url(description: str) -> str | None:
    """Where the table of a query's ckpt-sink is; None for every other sink.

    A relative path is meant from where the driver is, as the sink takes it; the jar says it in full, unless
    it begins with the home directory.
    """
    found = _CHECKPOINT_SINK.fullmatch(description.strip())
    if found is None or ":" in found[1]:
        return found[1] if found else None
    return str(Path(found[1]).expanduser().absolute())


def described_by(facts: QueryFacts, offsets: OffsetLog, head: CheckpointManifest) -> QueryFacts:
    """The facts; where no event has told of the sources yet, with what the run before knew of them."""
    if facts.sources or head.query.id != facts.query.id:
        return facts
    known = (head.source_offsets.get(name) for name in source_names(offsets))
    found = [source.metadata.get("description") for source in known if source is not None]
    told = tuple(text for text in found if text is not None)
    return replace(facts, sources=told) if len(told) == len(offsets.offsets) else facts


def draft_manifest(
    plan: CapturePlan,
    facts: QueryFacts,
    logs: CapturedLogs,
    refs: Mapping[str, ArtifactRef],
    requests: RequestCount,
) -> CheckpointManifest:
    """Put a manifest together; ``refs`` says where each file of the plan is."""
    sink = sink_name(facts.sink)
    offsets = logs.offsets.offsets
    names = source_names(logs.offsets)
    conf = dict(logs.offsets.conf)
    return CheckpointManifest(
        checkpoint_id=0,
        epoch=plan.epoch,
        query=QueryInfo(
            id=facts.query.id,
            name=facts.query.name,
            checkpoint_location=facts.query.checkpoint_location,
            spark_version=facts.query.spark_version,
            app_name=facts.query.app_name,
            conf=conf,
        ),
        operators=operator_entries(plan.operators, refs),
        files=tuple(refs[file.path] for file in plan.files),
        source_offsets={
            name: _connector(offset, plan.epoch, facts.sources, index)
            for index, (name, offset) in enumerate(zip(names, offsets, strict=True))
        },
        source_names=tuple(sorted(names)),
        table_store_checkpoint_path=sink_store_url(facts.sink),
        watermark=logs.commit.next_watermark_ms or None,
        sink_names=(sink,),
        sink_epochs={sink: plan.epoch},
        pipeline_hash=pipeline_hash(
            (operator.name for operator in plan.operators),
            logs.schemas,
            facts.sources,
            facts.sink,
            facts.output_mode,
        ),
        partition_count=int(conf.get(PARTITIONS, "0") or 0),
        requests=requests,
    )


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


def _connector(offset: str | None, epoch: int, sources: tuple[str, ...], index: int) -> ConnectorCheckpoint:
    metadata = {"description": sources[index]} if index < len(sources) else {}
    return ConnectorCheckpoint({} if offset is None else {"offset": offset}, epoch, metadata)
