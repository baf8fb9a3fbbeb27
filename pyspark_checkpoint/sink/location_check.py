"""Whether a location belongs to the head of its table: asked before a run publishes its first batch."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_checkpoint.errors import Diverged
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import StateRecord
from pyspark_checkpoint.history.artifact_reader import ArtifactReader, WantedArtifact
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.sink.batch_manifest import Batch
from pyspark_checkpoint.sink.state_driver import StateReading
from pyspark_checkpoint.sink.state_task import StatePlan
from pyspark_checkpoint.spark_files.divergence import (
    decisive_files,
    find_divergence,
    find_other_ids,
    only_split,
    parsed_files,
)
from pyspark_checkpoint.spark_files.location import FileGone
from pyspark_checkpoint.spark_files.log_reader import LocationLogs
from pyspark_checkpoint.spark_files.logs import decode_offset_log
from pyspark_checkpoint.spark_files.names import offsets_file
from pyspark_checkpoint.spark_files.positions import SourcePositions
from pyspark_checkpoint.spark_files.state_artifacts import state_owners
from pyspark_checkpoint.spark_files.state_record import declared_operators


def refuse_divergence(
    run: Run, batch: Batch, head: StatePlan, reading: StateReading, refs: Mapping[str, ArtifactRef]
) -> None:
    """Rule 7 for state: a location that has diverged from the table must not go on with it."""
    if head.record is None or head.head_run == run.run_id or run.head is None:
        return
    version = _decided_by(head.record, batch)
    found = {**refs, **_unneeded(run, version, head, reading, refs)}
    _refuse(find_divergence(version, head.held, found, declared_operators(head.record), reading.commits))


def refuse_other_attempts(run: Run, batch: Batch, head: StatePlan, logs: LocationLogs) -> None:
    """The same in format version 2, before the state is looked for: names tell, and another attempt's
    would only be missing."""
    if head.record is None or head.head_run == run.run_id:
        return
    version = _decided_by(head.record, batch)
    files = [file for file in parsed_files(head.held).values() if file.uid and file.version == version]
    if files:
        commits = logs.read_commits([version - 1])
        _refuse(find_other_ids(version, files, declared_operators(head.record), commits))


def refuse_other_offsets(run: Run, batch: Batch, head: StatePlan, logs: LocationLogs) -> None:
    """The same for the input: where the batch before ended elsewhere than the table says, rows would be
    lost or duplicated. For a stateless query nothing else shows it."""
    if head.record is None or head.head_run == run.run_id or run.head is None:
        return
    name = offsets_file(batch.batch_id - 1)
    ref = next((ref for ref in run.head.manifest.files if ref.name == name), None)
    if ref is None:
        return
    recorded = decode_offset_log(_reader(run).read(ref), name)
    try:
        found = logs.offsets(batch.batch_id - 1)
    except FileGone:
        return  # what a batch needs and is not there is refused where it is looked for
    same = SourcePositions.of_log(found) == SourcePositions.of_log(recorded)
    _refuse(None if same else f"{name} has other offsets")


def _reader(run: Run) -> ArtifactReader:
    return ArtifactReader(run.store, store_id=run.store_id or "", cipher=run.cipher)


def _decided_by(record: StateRecord, batch: Batch) -> int:
    """The version that shows a divergence; after an offline repartition, the one before it."""
    return min(batch.batch_id, record.batch_id + 1)


def _refuse(told: str | None) -> None:
    if told is not None:
        raise Diverged(
            f"the checkpoint location has diverged from the table: {told}",
            hint="run ckpt restore: the table's newest checkpoint has the state that belongs to its rows",
        )


def only_repartitioned_since(manifest: CheckpointManifest, batch: Batch, logs: LocationLogs) -> bool:
    """Whether the batches after a checkpoint and before ``batch`` only repartitioned the state."""
    record = manifest.state
    if record is None:
        return False
    try:
        found = [logs.offsets(number) for number in range(record.batch_id, batch.batch_id)]
    except FileGone:
        return False
    same = SourcePositions.of_manifest(manifest) == SourcePositions.of_log(found[0])
    return same and only_split(found)


def _unneeded(
    run: Run, version: int, head: StatePlan, reading: StateReading, refs: Mapping[str, ArtifactRef]
) -> dict[str, ArtifactRef]:
    """The decisive files that the batch does not name, because a snapshot has superseded them."""
    decisive = decisive_files(parsed_files(head.held), version)
    paths = [path for path in decisive if path not in refs and path in reading.listing.facts]
    if not paths or run.head is None:
        return {}
    owners = state_owners(run.head.manifest)
    reader = _reader(run)
    found: dict[str, ArtifactRef] = {}
    for path in paths:
        held, data = head.held[path], reading.location.read(path)
        same = reader.has_bytes(WantedArtifact(held, *owners[path]), data)
        other = ArtifactRef.of_inline(data, is_delta=held.is_delta, epoch=held.epoch, name=held.name)
        found[path] = held if same else other
    return found
