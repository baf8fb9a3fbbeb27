"""What is known about the query that writes: from the jar, or, without it, from the tasks.

With the jar the driver knows everything before the batch. Without it the tasks read the ids from their
local properties, and the commit learns them from the messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark_checkpoint.errors import Unsupported
from pyspark_checkpoint.spark_files.names import offsets_file

FACT_PREFIX = "__ckpt."
_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"
_BATCH_ID = "streaming.sql.batchId"
_CONTINUOUS = "__is_continuous_processing"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """Facts about the query that writes; empty where nobody has said."""

    by_jar: bool = False
    """Whether the jar is on the class path."""
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


def facts_from_options(options: Mapping[str, str]) -> WriterFacts:
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


def facts_from_fields(fields: Mapping[str, str]) -> WriterFacts:
    """Read what the jar wrote down, in options or in its commit message."""
    return WriterFacts(
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
    batch_id: int
    query_id: str
    run_id: str
    attempt: int = 0
    """How often Spark has started this task before, in this batch."""


def task_facts(properties: Mapping[str, str | None], *, partition: int, attempt: int = 0) -> TaskFacts:
    """Read the facts from a task's local properties; ``batch_id`` is -1 outside of a stream.

    Refused in continuous mode, which has no batches.
    """
    if properties.get(_CONTINUOUS) == "true":
        raise Unsupported(
            "ckpt-sink commits micro-batches, and this query runs in continuous mode",
            hint="use a processingTime or availableNow trigger",
        )
    return TaskFacts(
        partition=partition,
        batch_id=int(properties.get(_BATCH_ID) or -1),
        query_id=properties.get(_QUERY_ID) or "",
        run_id=properties.get(_RUN_ID) or "",
        attempt=attempt,
    )


def read_offsets(checkpoint_location: str, batch_id: int) -> str:
    """The text of ``offsets/N``, empty if the location is not a directory that this process sees."""
    root = local_directory(checkpoint_location)
    if root is None:
        return ""
    try:
        return (root / offsets_file(batch_id)).read_text("utf-8")
    except OSError:
        # Another machine's disk: the epoch is then known by query id and number alone.
        return ""


def local_directory(location: str) -> Path | None:
    """The directory that a checkpoint location names, None if it is in some other file system.

    As Hadoop reads it, no letter of a path stands for another one: ``%20`` is no space, ``#`` no fragment.
    """
    match = _URL.fullmatch(location)
    if match is None:
        return Path(location)
    scheme, host, path = match.groups()
    return Path(path) if scheme.lower() == "file" and host in (None, "", "localhost") else None
