"""Whether the rows, the state and the offsets of one manifest fit each other. Pure; ``verify`` runs it."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_checkpoint.errors import CheckpointError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.spark_files.logs import decode_offset_log
from pyspark_checkpoint.spark_files.names import METADATA, parse_log
from pyspark_checkpoint.spark_files.restore_points import check_state
from pyspark_checkpoint.spark_files.state_artifacts import state_refs
from pyspark_checkpoint.spark_files.state_record import StateRecord, find_state_record


def check_fit(manifest: CheckpointManifest) -> Iterator[str]:
    """What does not fit in a checkpoint of rows and state; nothing for every other checkpoint.

    The table is at the epoch of the batch, the state is there at the versions before and after it, the
    logs are those up to it and no later ones, and the offsets are the manifest's own.
    """
    try:
        record = find_state_record(manifest)
        if record is not None:
            yield from _check_epoch(manifest, record)
            yield from check_state(record, state_refs(manifest))
            yield from _check_logs(manifest, record)
            yield from _check_offsets(manifest, record)
    except CheckpointError as error:
        yield error.message


def _check_epoch(manifest: CheckpointManifest, record: StateRecord) -> Iterator[str]:
    table = manifest.table or {}
    epoch = record.batch + int(table.get("first_epoch", 0))
    if epoch != manifest.epoch:
        yield f"the state is of epoch {epoch}, the table of epoch {manifest.epoch}"
    committed = manifest.sink_epochs.get(str(table.get("operator")))
    if committed != manifest.epoch:
        yield f"the sink is at epoch {committed}, the table at epoch {manifest.epoch}"


def _check_logs(manifest: CheckpointManifest, record: StateRecord) -> Iterator[str]:
    names = {ref.name for ref in manifest.files}
    needed = {METADATA, f"offsets/{record.batch}"}
    if record.batch > 0:
        needed |= {f"offsets/{record.batch - 1}", f"commits/{record.batch - 1}"}
    for name in sorted(needed - names):
        yield f"{name} is not among its files"
    for name in sorted(names):
        log = parse_log(name)
        if log is not None and log[1] >= record.batch + (log[0] == "offsets"):
            yield f"{name} is later than its batch {record.batch}"


def _check_offsets(manifest: CheckpointManifest, record: StateRecord) -> Iterator[str]:
    """Compare Spark's log with the manifest's own offsets, where the log is inline and plain."""
    name = f"offsets/{record.batch}"
    for ref in manifest.files:
        if ref.name != name or ref.inline is None or ref.data_key_id is not None:
            continue
        logged = [offset for offset in decode_offset_log(ref.inline, name).offsets if offset is not None]
        recorded = [source.offsets.get("offset") for _, source in sorted(manifest.source_offsets.items())]
        if sorted(logged) != sorted(offset for offset in recorded if offset is not None):
            yield f"{name} has other source offsets than the manifest"
