"""Deleting checkpoints: those that are no longer live, and single ones out of the middle of a history.

What only the deleted ones name goes first, then their side records, then themselves, so that a crash leaves
the list of what is still to be deleted.

A checkpoint above the floor is first recorded in ``_control.deleted``: from then on it exists for nobody.
Then what only it needs is deleted, and last its manifest becomes a tombstone, which keeps the number, the
place in the chain and the digest of what was there. A crash on the way is finished by the next prune, or by
deleting it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import count

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.crypto.keyring import KEY_RING_HINT
from pyspark_checkpoint.errors import (
    Conflict,
    FormatError,
    MissingKey,
    NoCheckpoint,
    NotFound,
    OutcomeUnknown,
    RefusedError,
    Unavailable,
)
from pyspark_checkpoint.format.envelope import Mac, plain_only
from pyspark_checkpoint.format.keys import (
    MANIFESTS_PREFIX,
    committed_key,
    failed_key,
    manifest_key,
    parse_seal_key,
    parse_status_key,
    seal_key,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.manifest_codec import encode_manifest
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.format.settled import ListRef
from pyspark_checkpoint.format.summary import ManifestSummary
from pyspark_checkpoint.history.control import drop_stale_pins, has_changed_since, swap_control
from pyspark_checkpoint.history.head import locate_head
from pyspark_checkpoint.history.live_set import LiveSet, LiveSetChanged, find_summary, settle_live_set
from pyspark_checkpoint.history.manifest_reader import exists, load_manifest_bytes, read_stored
from pyspark_checkpoint.history.settle import kept_below, read_list
from pyspark_checkpoint.store.base import ObjectStore

_BATCH = 100


@dataclass(frozen=True, slots=True)
class Removal:
    """What was deleted: which checkpoints, and how many objects in all."""

    checkpoint_ids: tuple[int, ...] = ()
    object_count: int = 0

    def __add__(self, other: Removal) -> Removal:
        return Removal(self.checkpoint_ids + other.checkpoint_ids, self.object_count + other.object_count)


def remove_dead(store: ObjectStore, live: LiveSet, numbers: Iterable[int]) -> Removal:
    """Delete the dead among ``numbers`` and whatever nothing live needs. Repeatable after a crash."""
    dead = [number for number in numbers if number not in live.manifests]
    total = Removal()
    for start in range(0, len(dead), _BATCH):
        total += _remove_batch(store, live, dead[start : start + _BATCH])
    return total


def _remove_batch(store: ObjectStore, live: LiveSet, numbers: Sequence[int]) -> Removal:
    named: set[str] = set()
    lists: list[ListRef] = []
    records: list[str] = []
    found: list[int] = []
    for number in numbers:
        try:
            summary = find_summary(store, number)
        except FormatError:
            # Dead and damaged: what it named is not known; cleanup_orphans finds it by its number.
            found.append(number)
            records.append(seal_key(number))
            continue
        if summary is not None:
            found.append(number)
            named |= summary.paths - live.paths
            lists.extend(summary.settled)
            records.extend(side_records(store, summary))
    manifests = [manifest_key(number) for number in found]
    removed = remove_unnamed(store, named, lists, live)
    for keys in (records, manifests):
        if keys:
            store.delete(keys)
    return Removal(tuple(found), removed + len(records) + len(manifests))


def remove_unnamed(store: ObjectStore, named: Set[str], lists: Iterable[ListRef], live: LiveSet) -> int:
    """Delete what dead manifests name, ``lists`` of them included, and nothing live does; how many.

    What is below a dead list goes before the list, so that a crash leaves the way to the rest. Lists that
    live, and all below them, are not looked into, but for those that may name what is to go. If one of
    them is gone because somebody else prunes or deletes, ``LiveSetChanged``: only that one knows the rest.
    """
    try:
        dead = named - kept_below(store, live.lists, named)
    except FormatError:
        if has_changed_since(store, live.control):
            raise LiveSetChanged from None
        raise
    by_path = {ref.path: ref for ref in lists if ref.path in dead}
    count = 0
    for ref in by_path.values():
        try:
            content = read_list(store, ref)
        except FormatError:
            # Gone, or damaged: what it named is not known; cleanup_orphans finds it by its number.
            continue
        count += remove_unnamed(store, content.paths() - live.paths, content.lists, live)
    if dead:
        store.delete(sorted(dead))
    return count + len(dead)


def side_records(store: ObjectStore, summary: ManifestSummary) -> Iterator[str]:
    """The names of a checkpoint's seal and status records, from its sinks' names, without a LIST."""
    yield seal_key(summary.number)
    for sink in summary.sink_names:
        yield committed_key(summary.number, sink)
        for failure in count():
            key = failed_key(summary.number, sink, failure)
            if not exists(store, key):
                break
            yield key


def remove_lost_records(store: ObjectStore, head: int, lost: int) -> None:
    """Delete the seals and statuses of the numbers after ``head`` up to ``lost``, whose manifests are gone.

    Records are created once. Those of the lost would stand in the way of whoever is given their numbers.
    A number that has a manifest by now is left alone. Two rollbacks at once may still take a record from
    each other: then a batch is run, or a sink driven, once more than needed.
    """
    found: dict[int, list[str]] = {}
    for info in store.list(MANIFESTS_PREFIX, start_after=manifest_key(head)):
        number = _number_of_record(info.key)
        if number is not None and head < number <= lost:
            found.setdefault(number, []).append(info.key)
    dead = [
        key for number, keys in found.items() if not exists(store, manifest_key(number)) for key in keys
    ]
    if dead:
        store.delete(dead)


def _number_of_record(key: str) -> int | None:
    status = parse_status_key(key)
    return parse_seal_key(key) if status is None else status.number


# --- one checkpoint out of the middle ---------------------------------------------------------------


_ATTEMPTS = 20


def delete_checkpoint(store: ObjectStore, number: int, clock: Clock, *, mac: Mac | None = None) -> Removal:
    """Delete checkpoint ``number``; refuses the head, pinned ones and what does not exist."""
    where = locate_head(store)
    if where is None or number > where.number or number < 1:
        raise NoCheckpoint(f"{store.url} has no checkpoint {number}", hint="ckpt list shows what it has")
    if number == where.number:
        raise RefusedError(
            f"checkpoint {number} is the newest one", hint="roll back first, or delete the whole store"
        )
    check_may_delete(store, number, mac)
    control = mark_deleted(store, number, clock, head_number=where.number)
    live = settle_live_set(store, control)
    try:
        if live is not None:
            return finish_deletions(store, live, clock, mac=mac)
    except LiveSetChanged:
        pass
    raise Unavailable(
        f"checkpoint {number} is deleted for readers, but another prune is running",
        hint="the next prune deletes its objects; or repeat this",
    )


def check_may_delete(store: ObjectStore, number: int, mac: Mac | None) -> None:
    """Refuse to delete from an encrypted store without its key: the tombstone must be authenticated."""
    summary = find_summary(store, number)
    if summary is not None and not may_write_tombstone(summary, mac):
        raise MissingKey(
            summary.encryption_key_id or "",
            f"{store.url} is encrypted: deleting needs master key {summary.encryption_key_id!r}",
            hint=KEY_RING_HINT,
        )


def may_write_tombstone(summary: ManifestSummary, mac: Mac | None) -> bool:
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
                f"checkpoint {number} is pinned by {', '.join(names)}", hint="remove that savepoint first"
            )
        if number < control.floor:
            raise NoCheckpoint(
                f"checkpoint {number} is pruned already", hint="ckpt list shows what there is"
            )
        if number in control.deleted:
            return None
        kept = {name: pin for name, pin in control.pins.items() if pin.number != number}
        return control.changed(pins=kept, deleted=control.deleted | {number})

    return swap_control(store, change, clock).control


def finish_deletions(store: ObjectStore, live: LiveSet, clock: Clock, *, mac: Mac | None = None) -> Removal:
    """Delete what only deleted checkpoints need and leave their tombstones. Repeatable after a crash.

    Without the key of an encrypted store they are left to somebody who has it.
    """
    deleted = live.control.deleted
    kept = {number: summary for number, summary in live.manifests.items() if number not in deleted}
    needed = replace(live, manifests=kept, paths=frozenset().union(*(one.paths for one in kept.values())))
    total = Removal()
    for number in sorted(deleted):
        summary = live.manifests.get(number)
        if (
            summary is None
            or summary.kind is ManifestKind.TOMBSTONE
            or not may_write_tombstone(summary, mac)
        ):
            continue
        removed = remove_unnamed(store, summary.paths - needed.paths, summary.settled, needed)
        keys = list(side_records(store, summary))
        store.delete(keys)
        write_tombstone(store, number, clock, mac=mac)
        total += Removal((number,), removed + len(keys))
    return total


def write_tombstone(store: ObjectStore, number: int, clock: Clock, *, mac: Mac | None = None) -> None:
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
    raise Unavailable(
        f"gave up after {_ATTEMPTS} conflicting writes to {key}",
        key=key,
        hint="the next prune writes the tombstone; or repeat this",
    )


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
        rollbacks=manifest.rollbacks,
        instance_id=manifest.instance_id,
        query=manifest.query,
        share=manifest.share,
        assignment_version=manifest.assignment_version,
        vnode_count=manifest.vnode_count,
        encryption_key_id=manifest.encryption_key_id,
        deleted_sha256=sha256,
    )
