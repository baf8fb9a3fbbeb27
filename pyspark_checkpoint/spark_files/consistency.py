"""Whether the rows, the state and the offsets of one manifest fit each other. Pure; ``verify`` runs it."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_checkpoint.errors import CheckpointError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import StateRecord
from pyspark_checkpoint.spark_files.logs import decode_offset_log
from pyspark_checkpoint.spark_files.names import METADATA, commits_file, offsets_file, parse_log
from pyspark_checkpoint.spark_files.positions import SourcePositions
from pyspark_checkpoint.spark_files.restore_points import check_state
from pyspark_checkpoint.spark_files.state_artifacts import state_refs


def check_fit(manifest: CheckpointManifest) -> Iterator[str]:
    """What does not fit in a checkpoint of rows and state; nothing for every other checkpoint.

    The table is at the epoch of the batch, the state is there at the versions before and after it, the
    logs are those up to it and no later ones, and the offsets are the manifest's own.
    """
    try:
        record = manifest.state
        if record is not None:
            yield from _check_epoch(manifest, record)
            yield from check_state(record, state_refs(manifest))
            yield from _check_logs(manifest, record)
            yield from _check_offsets(manifest, record)
    except CheckpointError as error:
        yield error.message


def _check_epoch(manifest: CheckpointManifest, record: StateRecord) -> Iterator[str]:
    if manifest.table is None:
        yield "it has a table's state, and no table"
        return
    if record.batch_id != manifest.batch_id:
        yield f"the state is of batch {record.batch_id}, the table of batch {manifest.batch_id}"
    committed = manifest.sink_epochs.get(manifest.table.operator)
    if committed != manifest.epoch:
        yield f"the sink is at epoch {committed}, the table at epoch {manifest.epoch}"


def _check_logs(manifest: CheckpointManifest, record: StateRecord) -> Iterator[str]:
    planned = () if manifest.planned is None else manifest.planned.files
    names = {ref.name for ref in manifest.files} - set(planned)
    needed = {METADATA, offsets_file(record.batch_id)}
    if record.batch_id > 0:
        needed |= {offsets_file(record.batch_id - 1), commits_file(record.batch_id - 1)}
    for name in sorted(needed - names):
        yield f"{name} is not among its files"
    for name in sorted(names):
        log = parse_log(name)
        if log is not None and log[1] >= record.batch_id + (log[0] == "offsets"):
            yield f"{name} is later than its batch {record.batch_id}"


def _check_offsets(manifest: CheckpointManifest, record: StateRecord) -> Iterator[str]:
    """Compare Spark's log with the manifest's own offsets, where the log is inline and plain."""
    name = offsets_file(record.batch_id)
    for ref in manifest.files:
        if ref.name != name or ref.inline is None or ref.data_key_id is not None:
            continue
        logged = SourcePositions.of_log(decode_offset_log(ref.inline, name))
        if logged != SourcePositions.of_manifest(manifest):
            yield f"{name} has other source offsets than the manifest"
