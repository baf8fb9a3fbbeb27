"""What ``--json`` prints of checkpoints and queries. The names are stable: programs depend on them."""

from __future__ import annotations

from typing import Any

from pyspark_checkpoint.errors import CheckpointError, FormatError
from pyspark_checkpoint.history.overview import Entry, Overview
from pyspark_checkpoint.registry.queries import QueryRoot


def checkpoint_record(entry: Entry) -> dict[str, Any]:
    """One checkpoint of ``ckpt list``."""
    return {
        "checkpoint_id": entry.number,
        "epoch": entry.epoch,
        "batch_id": entry.batch_id,
        "timestamp_ms": entry.timestamp_ms,
        "kind": DAMAGED if entry.kind is None else entry.kind.value,
        "total_size_bytes": entry.total_size_bytes,
        "new_bytes": entry.new_bytes,
        "objects": entry.object_count,
        "generation": entry.generation,
        "run_id": entry.run_id,
        "savepoints": list(entry.savepoints),
        "staged_ms": entry.staged_ms,
        "requests": {
            "puts": entry.requests.puts,
            "gets": entry.requests.gets,
            "bytes": entry.requests.bytes,
        },
        "batch_watermark_ms": entry.batch_watermark_ms,
        "next_watermark_ms": entry.next_watermark_ms,
        "rollback_of": entry.rollback_of,
        "problem": entry.problem,
    }


DAMAGED = "damaged"
UNKNOWN = "unknown"


def problem_kind(problem: CheckpointError) -> str:
    """What a query is called that cannot be shown: stored bytes are wrong, or nobody could look."""
    return DAMAGED if isinstance(problem, FormatError) else UNKNOWN


def query_record(
    root: QueryRoot, url: str | None, overview: Overview, problem: CheckpointError | None = None
) -> dict[str, Any]:
    """One query below a URL: its newest checkpoint, and whose it is; ``problem`` is what hides that."""
    newest = overview.newest or Entry(0, kind=None)
    record = checkpoint_record(newest)
    if overview.newest is None:
        record |= {"checkpoint_id": None, "kind": None if problem is None else problem_kind(problem)}
    if problem is not None:
        record["problem"] = problem.message
    return record | {
        "query_id": root.query_id or None,
        "name": root.name,
        "app_name": root.app_name,
        "url": url,
        "savepoints": list(overview.savepoint_names),
    }
