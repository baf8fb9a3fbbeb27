"""Seals: what becomes known of a checkpoint only after it was committed, for a head that stays head.

For Spark that is ``commits/N``. The next manifest carries it anyway; a seal is written when there is no
next one soon: the query idles, stops, or makes a savepoint. In an encrypted store a seal is authenticated,
as manifests are: it decides where a query goes on, and with which watermark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import Diverged, FormatError, NoCheckpoint, RefusedError
from pyspark_checkpoint.format.envelope import Mac
from pyspark_checkpoint.format.keys import committed_key, seal_key
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.records import Seal, SinkCommitStatus, decode_seal, encode_seal
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.manifest_reader import create_object, exists, find_record
from pyspark_checkpoint.history.sink_status import (
    belongs,
    check_may_write,
    origins,
    read_status,
    record_status,
)
from pyspark_checkpoint.store.base import ObjectStore

_LOG = logging.getLogger(__name__)
SealCheck = Callable[[CheckpointManifest, Mapping[str, bytes]], str | None]
"""Says why the files do not belong to what the manifest names; None if they do."""


def write_seal(
    store: ObjectStore,
    manifest: CheckpointManifest,
    files: Mapping[str, bytes],
    clock: Clock,
    *,
    check: SealCheck,
    mac: Mac | None = None,
) -> Seal:
    """Seal a checkpoint with ``files``. Repeating it with the same files is harmless.

    Rule 12: refused if ``check`` finds that the files speak of other state than the manifest names, if
    the manifest is not the one in the store, or if it is sealed with other files.
    """
    reason = check(manifest, files)
    if reason is not None:
        raise Diverged(
            f"checkpoint {manifest.checkpoint_id} cannot be sealed: {reason}",
            hint="the checkpoint location is not the one that the checkpoint was made of; run ckpt restore",
        )
    found = find_checkpoint(store, manifest.checkpoint_id, mac=mac)
    if found is None or not belongs(found.manifest.commit_nonce, manifest):
        raise NoCheckpoint(
            f"checkpoint {manifest.checkpoint_id} is not the one that is to be sealed",
            hint="it was pruned, or another run has its number; ckpt list shows what there is",
        )
    return create_seal(store, manifest, files, clock, mac=mac)


def create_seal(
    store: ObjectStore,
    manifest: CheckpointManifest,
    files: Mapping[str, bytes],
    clock: Clock,
    *,
    mac: Mac | None = None,
) -> Seal:
    """Create the seal record; the one that is there must say the same."""
    check_may_write(manifest, mac)
    seal = Seal(manifest.checkpoint_id, manifest.commit_nonce, clock.now_ms(), dict(files))
    if create_object(store, seal_key(manifest.checkpoint_id), encode_seal(seal, mac=mac), clock):
        return seal
    there = find_seal(store, manifest, mac=mac)
    if there is None or dict(there.files) != dict(files):
        raise Diverged(
            f"checkpoint {manifest.checkpoint_id} is sealed with other files",
            hint="another driver has run this batch on from the same checkpoint; stop one of the two",
        )
    return there


def find_seal(store: ObjectStore, manifest: CheckpointManifest, *, mac: Mac | None = None) -> Seal | None:
    """The seal of a checkpoint, None if it has none. One that carries another nonce is not its seal.

    With ``mac``, in an encrypted store, one that no holder of the keys has written is a ``FormatError``.
    """
    key = seal_key(manifest.checkpoint_id)
    data = find_record(store, key)
    if data is None:
        return None
    seal = decode_seal(data, key, mac=mac)
    is_its = belongs(seal.commit_nonce, manifest) and seal.checkpoint_id == manifest.checkpoint_id
    return seal if is_its else None


def carry_records(
    store: ObjectStore,
    parent: CheckpointManifest,
    child: CheckpointManifest,
    clock: Clock,
    *,
    mac: Mac | None = None,
) -> None:
    """Give ``child``, which names what ``parent`` names, the parent's seal and its sinks' commits.

    Without that a claim or a rollback would forget them, and sinks would be driven again for nothing.
    Also those that the parent, itself a claim or a rollback that died on the way, did not come to carry.
    What is damaged, or not authenticated, is not carried over; nor is anything where another record stands
    in the way. ``child`` is committed by now, and good without them: that is warned of, and no error.
    """
    earlier = _Earlier(store, parent, mac)
    seal = earlier.find_seal()
    if seal is not None:
        try:
            create_seal(store, child, seal.files, clock, mac=mac)
        except (RefusedError, FormatError) as error:
            _warn_of("the seal of", parent, child, error)
    for sink in parent.sink_names:
        if exists(store, committed_key(child.checkpoint_id, sink)) or not earlier.has_committed(sink):
            continue
        try:
            status = SinkCommitStatus.COMMITTED
            record_status(store, child, sink, status, clock, message="carried over", mac=mac)
        except (RefusedError, FormatError) as error:
            _warn_of(f"that sink {sink!r} has committed", parent, child, error)


def _warn_of(what: str, parent: CheckpointManifest, child: CheckpointManifest, error: Exception) -> None:
    numbers = (parent.checkpoint_id, child.checkpoint_id)
    _LOG.warning("%s checkpoint %d is not carried over to %d: %s; run ckpt verify", what, *numbers, error)


class _Earlier:
    """A checkpoint and those that it repeats, read as far back as an answer needs."""

    def __init__(self, store: ObjectStore, parent: CheckpointManifest, mac: Mac | None) -> None:
        self._store = store
        self._mac = mac
        self._rest = origins(store, parent, mac=mac)
        self._read: list[CheckpointManifest] = []

    def _chain(self) -> Iterator[CheckpointManifest]:
        yield from self._read
        for origin in self._rest:
            self._read.append(origin)
            yield origin

    def find_seal(self) -> Seal | None:
        try:
            found = (find_seal(self._store, origin, mac=self._mac) for origin in self._chain())
            return next((seal for seal in found if seal is not None), None)
        except FormatError as error:
            _LOG.warning("a seal is not carried over: %s", error)
            return None

    def has_committed(self, sink: str) -> bool:
        """By the first of them that has a record of this sink."""
        try:
            for origin in self._chain():
                status = read_status(self._store, origin, sink, mac=self._mac)
                if status is not SinkCommitStatus.PENDING:
                    return status is SinkCommitStatus.COMMITTED
        except FormatError as error:
            _LOG.warning("what sink %r has committed is not carried over: %s", sink, error)
        return False
