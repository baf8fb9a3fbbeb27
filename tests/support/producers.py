"""Both producers of checkpoints on one location, and which fields of theirs must be equal."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.spark_files.location import LocationSpec

OF_THE_COMMIT = {
    "attempt",
    "checkpoint_id",
    "commit_nonce",
    "deleted_sha256",
    "earlier_runs",
    "encryption_key_id",
    "generation",
    "instance_id",
    "kind",
    "parent_id",
    "parent_sha256",
    "requests",
    "rollback_of",
    "run_id",
    "sink_commit_statuses",
    "timestamp_ms",
}
"""What the place in a history gives, not the batch."""
OF_THE_TABLE = {
    "epoch",
    "operators",
    "files",
    "next_watermark_ms",
    "partition_count",
    "sink_epochs",
    "sink_names",
    "state",
    "table",
    "table_store_checkpoint_path",
    "vnode_count",
}
"""What only one of them has: rows, or the state of after the batch with its commit log."""


def captured_at(url: str, facts: QueryFacts) -> CheckpointManifest:
    """What the listener stores of the newest batch of a query's location."""
    history = CheckpointStore.open(url, query=facts.query)
    run = history.writer()
    run.claim()
    where = LocationSpec(facts.query.checkpoint_location).open()
    made = QueryCapture(where, run, replace(facts, run_id=history.run_id)).capture()
    assert made is not None
    return made


def shared_fields(manifest: CheckpointManifest) -> dict[str, Any]:
    """The fields that both producers fill."""
    names = {field.name for field in fields(manifest)} - OF_THE_COMMIT - OF_THE_TABLE
    found = {name: getattr(manifest, name) for name in names}
    query = manifest.query
    return found | {"query": (query.id, query.checkpoint_location, query.conf)}
