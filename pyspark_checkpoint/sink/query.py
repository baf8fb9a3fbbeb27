"""What is known about the query that writes: from the jar, or, without it, from the tasks.

With the jar the driver knows everything before the batch. Without it the tasks read the ids from their
local properties and the commit learns them from the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_checkpoint.errors import RefusedError

FACT_PREFIX = "__ckpt."
_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"
_BATCH_ID = "streaming.sql.batchId"
_CONTINUOUS = "__is_continuous_processing"


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """Facts about a query; empty where nobody has said. ``by_jar``: the jar is on the class path."""

    by_jar: bool = False
    query_id: str = ""
    run_id: str = ""
    query_name: str = ""
    output_mode: str = ""
    checkpoint_location: str = ""
    spark_version: str = ""
    app_name: str = ""
    shuffle_partitions: int = 0
    partitions: int = 0
    """What the jar has asked Spark to bring the rows to; 0 for a table without keys."""
    begun: bool = False
    """Whether this run has committed before."""
    offsets: str = ""
    """The text of ``offsets/N``."""
    tasks: int = 0
    """How many tasks the batch has; 0 if nobody has said."""
    batch: int = -1
    """The number of the batch that is planned; -1 if nobody has said."""
    once: bool = False
    """Whether it is known that each task of the batch ran once: no retry, no speculation."""


def facts_from_options(options: Mapping[str, str]) -> QueryFacts:
    """Read the facts among the options of a data source."""
    lower = {name.lower(): str(value) for name, value in options.items()}
    found = {
        name.removeprefix(FACT_PREFIX): value
        for name, value in lower.items()
        if name.startswith(FACT_PREFIX)
    }
    facts = facts_from_fields(found)
    return replace(
        facts,
        query_name=facts.query_name or lower.get("queryname", ""),
        checkpoint_location=facts.checkpoint_location or lower.get("checkpointlocation", ""),
    )


def facts_from_fields(fields: Mapping[str, str]) -> QueryFacts:
    """Read what the jar wrote down, in options or in its commit message."""
    return QueryFacts(
        by_jar=bool(fields.get("spark_version")),
        query_id=fields.get("query_id", ""),
        run_id=fields.get("run_id", ""),
        query_name=fields.get("query_name", ""),
        output_mode=fields.get("output_mode", ""),
        checkpoint_location=fields.get("checkpoint_location", ""),
        spark_version=fields.get("spark_version", ""),
        app_name=fields.get("app_name", ""),
        shuffle_partitions=int(fields.get("shuffle_partitions") or 0),
        partitions=int(fields.get("partitions") or 0),
        begun=fields.get("begun", "") == "true",
        offsets=fields.get("offsets", ""),
        tasks=int(fields.get("tasks") or 0),
        batch=int(fields.get("batch") or -1),
        once=fields.get("once", "") == "true",
    )


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What a task knows: its place, the batch, and whose it is."""

    partition: int
    task_attempt_id: int
    batch_id: int
    query_id: str
    run_id: str
    attempt: int = 0
    """How often Spark has started this task before, in this batch."""


def task_facts(
    properties: Mapping[str, str | None], *, partition: int, task_attempt_id: int, attempt: int = 0
) -> TaskFacts:
    """Read the facts from a task's local properties; ``batch_id`` is -1 outside of a stream.

    Refused in continuous mode, which has no batches.
    """
    if properties.get(_CONTINUOUS) == "true":
        raise RefusedError(
            "ckpt-sink commits micro-batches, and this query runs in continuous mode",
            hint="use a processingTime or availableNow trigger",
        )
    return TaskFacts(
        partition=partition,
        task_attempt_id=task_attempt_id,
        batch_id=int(properties.get(_BATCH_ID) or -1),
        query_id=properties.get(_QUERY_ID) or "",
        run_id=properties.get(_RUN_ID) or "",
        attempt=attempt,
    )
