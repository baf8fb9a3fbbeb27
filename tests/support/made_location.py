"""A made checkpoint location, captured as a listener does it."""

from __future__ import annotations

from pathlib import Path

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.run import HeadCheck
from pyspark_checkpoint.listener.checkpointer import QueryCapture, Uploader
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.testing.made_location import QUERY_ID, MadeLocation

__all__ = ["QUERY_ID", "MadeLocation", "capture", "contents", "needed", "open_capture"]


def open_capture(
    location: MadeLocation,
    url: str,
    options: dict[str, str] | None = None,
    *,
    sink: str = "test",
    run_id: str | None = None,
    instance_id: str = "",
    uploader: Uploader | None = None,
    check: HeadCheck | None = None,
) -> QueryCapture:
    """What captures a location, as a listener has it; the store is claimed."""
    info = QueryInfo(id=location.query_id, checkpoint_location=str(location.path), spark_version="4.3.0")
    history = CheckpointStore.open(url, options, query=info, run_id=run_id, instance_id=instance_id)
    run = history.writer()
    run.claim(check)
    facts = QueryFacts(info, history.run_id, ("source",), sink, "update")
    return QueryCapture(LocationSpec(str(location.path)).open(), run, facts, uploader, check=check)


def capture(
    location: MadeLocation,
    url: str,
    *epochs: int,
    options: dict[str, str] | None = None,
    sink: str = "test",
) -> list[CheckpointManifest]:
    """Capture these epochs; all of them are new."""
    capturer = open_capture(location, url, options, sink=sink)
    made = [capturer.capture(epoch) for epoch in epochs]
    return [manifest for manifest in made if manifest is not None]


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def needed(location: MadeLocation, epoch: int) -> dict[str, bytes]:
    """What a location restored at ``epoch`` must consist of, byte by byte."""
    return location.needed(epoch)
