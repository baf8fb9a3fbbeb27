"""What became of a checkpoint at its sinks: create-only records beside the manifest.

No record means pending, unless the checkpoint itself holds the proof. ``committed`` wins over
``failed``, whichever was written first. A record counts only for the manifest whose nonce it carries.
Names come from ``sink_names``; nothing is listed. In an encrypted store every record is authenticated: who
has the keys takes none without, and who has not writes none. A record that does not verify says nothing of
its checkpoint, which is as good as before: whoever reads a checkpoint reads ``usable_statuses``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.crypto.keyring import KEY_RING_HINT
from pyspark_checkpoint.errors import (
    FormatError,
    RefusedError,
    UnknownVersion,
)
from pyspark_checkpoint.format.envelope import Mac, plain_only
from pyspark_checkpoint.format.keys import committed_key, failed_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.records import (
    SinkCommitStatus,
    SinkStatusRecord,
    decode_status,
    encode_status,
)
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.manifest_reader import create_object, find_record
from pyspark_checkpoint.spark_files.names import commits_file
from pyspark_checkpoint.store.base import ObjectStore

_LOG = logging.getLogger(__name__)
MAX_FAILURES = 1000
_MAX_ORIGINS = 8


def record_status(
    store: ObjectStore,
    manifest: CheckpointManifest,
    sink: str,
    status: SinkCommitStatus,
    clock: Clock,
    *,
    message: str = "",
    mac: Mac | None = None,
) -> SinkStatusRecord:
    """Record that ``sink`` has committed the checkpoint, or has failed to. Repeating it is harmless."""
    if sink not in manifest.sink_names:
        raise RefusedError(
            f"checkpoint {manifest.checkpoint_id} has no sink {sink!r}",
            hint=f"it has {', '.join(manifest.sink_names) or 'none'}",
        )
    if status is SinkCommitStatus.PENDING:
        raise RefusedError(
            "pending is the absence of a record, and cannot be recorded", hint="record nothing"
        )
    check_may_write(manifest, mac)
    record = SinkStatusRecord(
        manifest.checkpoint_id, manifest.commit_nonce, sink, status, clock.now_ms(), message
    )
    if status is SinkCommitStatus.COMMITTED:
        _create(store, committed_key(record.checkpoint_id, sink), record, clock, mac)
        return record
    for failure in range(MAX_FAILURES):
        if _create(store, failed_key(record.checkpoint_id, sink, failure), record, clock, mac):
            return record
    raise RefusedError(
        f"sink {sink!r} has failed {MAX_FAILURES} times with checkpoint {manifest.checkpoint_id}",
        hint="repair the sink, or go back to an earlier checkpoint with ckpt rollback",
    )


def check_may_write(manifest: CheckpointManifest, mac: Mac | None) -> None:
    """Refuse to write a record of an encrypted store without its keys: nobody could trust it."""
    if manifest.encryption_key_id is not None and (mac is None or mac is plain_only):
        raise RefusedError(
            f"checkpoint {manifest.checkpoint_id} is encrypted, and its records are authenticated",
            hint=KEY_RING_HINT,
        )


def _create(store: ObjectStore, key: str, record: SinkStatusRecord, clock: Clock, mac: Mac | None) -> bool:
    """Create a record; False if another one of this manifest is there."""
    data = encode_status(record, mac=mac)
    if create_object(store, key, data, clock):
        return True
    found = find_record(store, key)
    if found is None or found == data:
        return True
    other = decode_status(found, key, mac=mac)
    if other.commit_nonce != record.commit_nonce:
        raise FormatError(f"{key} is the record of another manifest than the one in the store")
    return False


def is_committed_by_spark(manifest: CheckpointManifest, sink: str) -> bool:
    """Whether the checkpoint itself proves that ``sink`` has committed: it holds Spark's commit log.

    Spark writes ``commits/N`` only after the sink has committed batch N, and a capture of Spark's own
    state is taken only after that, so that there is nothing left to drive.
    """
    if manifest.sink_epochs.get(sink, -1) < manifest.epoch:
        return False
    return any(ref.name == commits_file(manifest.epoch) for ref in manifest.files)


def read_status(
    store: ObjectStore,
    manifest: CheckpointManifest,
    sink: str,
    *,
    mac: Mac | None = None,
    pass_over_damage: bool = False,
) -> SinkCommitStatus:
    """How far ``sink`` is with a checkpoint. At most two requests, more only after failures."""
    if is_committed_by_spark(manifest, sink):
        return SinkCommitStatus.COMMITTED
    for status, key in (  # in this order: ``committed`` wins over ``failed``
        (SinkCommitStatus.COMMITTED, committed_key(manifest.checkpoint_id, sink)),
        (SinkCommitStatus.FAILED, failed_key(manifest.checkpoint_id, sink, 0)),
    ):
        try:
            if _has_record(store, manifest, key, sink, status, mac=mac):
                return status
        except FormatError as error:
            if not pass_over_damage or isinstance(error, UnknownVersion):
                raise
            number = manifest.checkpoint_id
            _LOG.warning("a status of checkpoint %d is passed over: %s; run ckpt verify", number, error)
    return SinkCommitStatus.PENDING


def origins(
    store: ObjectStore, manifest: CheckpointManifest, *, mac: Mac | None = None, limit: int = _MAX_ORIGINS
) -> Iterator[CheckpointManifest]:
    """The checkpoint, then the one that it repeats, if it is a claim or a rollback, and so on.

    Records are carried over after the create; between the two a crash may have come, and whoever
    repeats it once more looks for them further back.
    """
    for _ in range(limit):
        yield manifest
        if manifest.kind is ManifestKind.CLAIM:
            number = manifest.parent_id
        elif manifest.kind is ManifestKind.ROLLBACK and manifest.rollback_of is not None:
            number = manifest.rollback_of
        else:
            return
        found = find_checkpoint(store, number, mac=mac)
        if found is None:
            return
        manifest = found.manifest


def read_statuses(
    store: ObjectStore, manifest: CheckpointManifest, *, mac: Mac | None = None
) -> dict[str, SinkCommitStatus]:
    """How far every sink is with a checkpoint."""
    return {sink: read_status(store, manifest, sink, mac=mac) for sink in manifest.sink_names}


def usable_statuses(
    store: ObjectStore, manifest: CheckpointManifest, *, mac: Mac | None = None
) -> dict[str, SinkCommitStatus]:
    """The same by the records that verify alone; one that does not counts as absent, and is warned of.

    A record lies beside its manifest, and anybody who can write to the store may have put it there. It
    must never make a checkpoint bad: a restore would step back over it. One of a newer version is an error.
    """
    return {
        sink: read_status(store, manifest, sink, mac=mac, pass_over_damage=True)
        for sink in manifest.sink_names
    }


SinkDrivers = Mapping[str, Callable[[CheckpointManifest], object]]
"""What makes a sink commit a checkpoint, by the sink's name. It may have done so before: see the nonce."""


def drive_sinks(
    store: ObjectStore,
    manifest: CheckpointManifest,
    names: Iterable[str],
    sinks: SinkDrivers,
    clock: Clock,
    *,
    mac: Mac | None = None,
) -> CheckpointManifest:
    """Call each named sink with the checkpoint, record what became of it, and return all statuses.

    A sink that raises is recorded as failed, with the kind of its error; the others are driven all the
    same. A name without a sink is refused before any is called. What cannot be recorded, because a record
    that does not verify stands in the way, is warned of: that sink is driven again next time.
    """
    wanted = tuple(names)
    unknown = sorted(set(wanted) - set(sinks))
    if unknown:
        raise RefusedError(
            f"no sink is registered for {', '.join(map(repr, unknown))}",
            hint=f"checkpoint {manifest.checkpoint_id} has to be committed there again: register it first",
        )
    for sink in wanted:
        status, message = SinkCommitStatus.COMMITTED, "driven again"
        try:
            sinks[sink](manifest)
        except Exception as error:  # noqa: BLE001 - whatever a sink raises, the others are driven too
            status, message = SinkCommitStatus.FAILED, type(error).__name__
            _LOG.warning("sink %r failed with checkpoint %d: %s", sink, manifest.checkpoint_id, message)
        try:
            record_status(store, manifest, sink, status, clock, message=message, mac=mac)
        except UnknownVersion:
            raise
        except FormatError as error:
            _LOG.warning("what became of sink %r is not recorded: %s; run ckpt verify", sink, error)
    return manifest.with_statuses(usable_statuses(store, manifest, mac=mac))


def _has_record(
    store: ObjectStore,
    manifest: CheckpointManifest,
    key: str,
    sink: str,
    status: SinkCommitStatus,
    *,
    mac: Mac | None,
) -> bool:
    """Whether the record of this name is there and this manifest's; of what it is, is checked."""
    data = find_record(store, key)
    if data is None:
        return False
    record = decode_status(data, key, mac=mac)
    if not belongs(record.commit_nonce, manifest):
        return False
    if (record.checkpoint_id, record.sink, record.status) != (manifest.checkpoint_id, sink, status):
        raise FormatError(f"{key} is the record of something else than its name says")
    return True


def belongs(commit_nonce: str, manifest: CheckpointManifest) -> bool:
    """Rule 12: a record counts only for the manifest whose nonce it carries."""
    return commit_nonce == manifest.commit_nonce
