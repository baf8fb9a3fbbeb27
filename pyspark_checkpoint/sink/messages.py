"""What tasks, and the jar, tell the commit. Only these values travel from ``write`` to ``commit``."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import RequestCount
from pyspark_checkpoint.sink.batch_plan import SinkPlan
from pyspark_checkpoint.sink.query import QueryFacts, TaskFacts, facts_from_fields
from pyspark_checkpoint.sink.state_task import CoveredFile


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
    rows: int
    ref: ArtifactRef | None
    rewritten: Rewritten | None
    requests: RequestCount
    plan: SinkPlan | None
    state: tuple[CoveredFile, ...] = ()
    """The state files that this task took its share of, new and known ones."""


@dataclass(frozen=True)
class DriverFacts(WriterCommitMessage):
    """What only the JVM's driver knows."""

    facts: QueryFacts


def query_facts(text: str) -> DriverFacts:
    """Read the message that the jar adds to those of the tasks; Spark unpickles a call of this."""
    fields = {str(name): str(value) for name, value in orjson.loads(text).items()}
    return DriverFacts(facts_from_fields(fields))
