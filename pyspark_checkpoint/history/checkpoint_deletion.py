"""Deleting one checkpoint out of the middle of the history, without breaking numbers or the chain.

First the number is recorded in ``_control.deleted``: from then on it exists for nobody. Then what only
it needs is deleted, and last its manifest becomes a tombstone, which keeps the number, the place in the
chain and the digest of what was there. A crash on the way is finished by the next prune, or by deleting
it again.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import (
    Conflict,
    MissingKey,
    NotFound,
    OutcomeUnknown,
    RefusedError,
    Unavailable,
)
from pyspark_checkpoint.format.envelope import Mac, plain_only
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.manifest_codec import encode_manifest
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.format.summary import ManifestSummary
from pyspark_checkpoint.history.control import swap_control
from pyspark_checkpoint.history.deletion import Removal, remove_unnamed, side_records
from pyspark_checkpoint.history.head import locate_head
from pyspark_checkpoint.history.live_set import Living, find_summary, settle_living
from pyspark_checkpoint.history.manifest_reader import load_manifest_bytes, read_stored
from pyspark_checkpoint.history.pins import drop_stale_pins
from pyspark_checkpoint.store.base import ObjectStore

_ATTEMPTS = 20


def delete_checkpoint(store: ObjectStore, number: int, clock: Clock, *, mac: Mac | None = None) -> Removal:
    """Delete checkpoint ``number``; refuses the head, pinned ones and what does not exist."""
    where = locate_head(store)
    if where is None or number > where.number or number < 1:
        raise RefusedError(f"{store.url} has no checkpoint {number}", hint="ckpt list shows what it has")
    if number == where.number:
        raise RefusedError(
            f"checkpoint {number} is the newest one", hint="roll back first, or delete the whole store"
        )
    check_authority(store, number, mac)
    control = mark_deleted(store, number, clock, head_number=where.number)
    living = settle_living(store, control)
    if living is None:
        raise Unavailable(
            f"checkpoint {number} is deleted for readers, but somebody else is pruning",
            hint="the next prune deletes its objects; or repeat this",
        )
    return finish_deletions(store, living, clock, mac=mac)


def check_authority(store: ObjectStore, number: int, mac: Mac | None) -> None:
    """Refuse to delete from an encrypted store without its key: the tombstone must be authenticated."""
    summary = find_summary(store, number)
    if summary is not None and not may_bury(summary, mac):
        raise MissingKey(
            summary.encryption_key_id or "",
            f"{store.url} is encrypted: deleting needs master key {summary.encryption_key_id!r}",
            hint="give encryptionKeyFile, or set CKPT_KEY_FILE or CKPT_KEYRING",
        )


def may_bury(summary: ManifestSummary, mac: Mac | None) -> bool:
    """Whether who has ``mac``, or none, can write a tombstone that readers of the store accept."""
    return summary.encryption_key_id is None or mac not in (None, plain_only)


def mark_deleted(store: ObjectStore, number: int, clock: Clock, *, head_number: int = 0) -> Control:
    """Record that ``number`` is deleted, by compare-and-swap; refuses pinned and pruned ones.

    The pin of a rollback that crashed protects nothing once ``head_number`` has passed it, and is dropped.
    """

    def change(control: Control) -> Control | None:
        pins = drop_stale_pins(control, head_number)
        names = sorted(name for name, pin in pins.items() if pin.number == number)
        if names:
            raise RefusedError(
                f"checkpoint {number} is pinned by {', '.join(names)}", hint="unpin it first"
            )
        if number < control.floor:
            raise RefusedError(f"checkpoint {number} is pruned already")
        if number in control.deleted:
            return None
        kept = {name: pin for name, pin in control.pins.items() if pin.number != number}
        return control.changed(pins=kept, deleted=control.deleted | {number})

    return swap_control(store, change, clock).control


def finish_deletions(
    store: ObjectStore, living: Living, clock: Clock, *, mac: Mac | None = None
) -> Removal:
    """Delete what only deleted checkpoints need and leave their tombstones. Repeatable after a crash.

    Without the key of an encrypted store they are left to somebody who has it.
    """
    deleted = living.control.deleted
    kept = [summary for number, summary in living.manifests.items() if number not in deleted]
    needed = frozenset[str]().union(*(summary.paths for summary in kept))
    lists = list({ref.path: ref for summary in kept for ref in summary.settled}.values())
    total = Removal()
    for number in sorted(deleted):
        summary = living.manifests.get(number)
        if summary is None or summary.kind is ManifestKind.TOMBSTONE or not may_bury(summary, mac):
            continue
        removed = remove_unnamed(store, summary.paths - needed, summary.settled, needed, lists)
        keys = list(side_records(store, summary))
        store.delete(keys)
        bury(store, number, clock, mac=mac)
        total += Removal((number,), removed + len(keys))
    return total


def bury(store: ObjectStore, number: int, clock: Clock, *, mac: Mac | None = None) -> None:
    """Replace manifest ``number`` by its tombstone, by compare-and-swap. Repeating it changes nothing."""
    key = manifest_key(number)
    for _ in range(_ATTEMPTS):
        try:
            stored = read_stored(store, key)
        except NotFound:
            return
        loaded = load_manifest_bytes(stored.data, number, mac=mac)
        if loaded.manifest.kind is ManifestKind.TOMBSTONE:
            return
        data = encode_manifest(tombstone_of(loaded.manifest, loaded.sha256), mac=mac)
        try:
            store.put(key, data, if_match=stored.version, nonce=clock.nonce())
        except (Conflict, OutcomeUnknown):
            clock.sleep(0.05)
            continue
        return
    raise Unavailable(f"the tombstone of checkpoint {number} could not be written", key=key)


def tombstone_of(manifest: CheckpointManifest, sha256: str) -> CheckpointManifest:
    """What stays of a deleted checkpoint: who made it and when, its place in the chain, its digest."""
    return replace(
        CheckpointManifest.new(manifest.checkpoint_id, manifest.epoch),
        batch_id=manifest.batch_id,
        kind=ManifestKind.TOMBSTONE,
        timestamp_ms=manifest.timestamp_ms,
        commit_nonce=manifest.commit_nonce,
        attempt=manifest.attempt,
        parent_id=manifest.parent_id,
        parent_sha256=manifest.parent_sha256,
        generation=manifest.generation,
        run_id=manifest.run_id,
        earlier_runs=manifest.earlier_runs,
        instance_id=manifest.instance_id,
        query=manifest.query,
        share=manifest.share,
        assignment_version=manifest.assignment_version,
        vnode_count=manifest.vnode_count,
        encryption_key_id=manifest.encryption_key_id,
        deleted_sha256=sha256,
    )
