"""Copying a history, or chosen checkpoints of it, to another store on any cloud.

``copy_plan`` says what holds at the target. The order makes it so: the control record, wrapped keys and
artifacts first, then what is pinned below the floor, then manifests in ascending order, each with its
seal and statuses, then pins, and the hint last. A copy that was interrupted is finished by the next one;
one that follows a growing source brings what is new.

Do not prune the target while a copy runs; pruning the source is fine: the plan is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.crypto.aead import MANIFEST_KEY_ID
from pyspark_checkpoint.errors import FormatError, RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import Mac
from pyspark_checkpoint.format.keys import LATEST_KEY, manifest_key
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.records import Control, decode_latest
from pyspark_checkpoint.history.control import find_control_or_new
from pyspark_checkpoint.history.copy_execute import (
    Progress,
    SourceMoved,
    execute_copy,
    moved_or,
    source_lacks,
)
from pyspark_checkpoint.history.copy_plan import (
    Copied,
    CopyPlan,
    CopyWish,
    Place,
    SourceView,
    TargetView,
    numbers_to_read,
    plan_copy,
    view_of,
)
from pyspark_checkpoint.history.head import Head, find_head, locate_head, lost_problem
from pyspark_checkpoint.history.manifest_reader import (
    LoadedManifest,
    exists,
    find_manifest,
    find_record,
    load_manifest_bytes,
)
from pyspark_checkpoint.history.parallel import DEFAULT_CONCURRENCY
from pyspark_checkpoint.history.settle import walk_lists
from pyspark_checkpoint.store.base import ObjectStore

_MAX_ROUNDS = 5

_LOG = logging.getLogger(__name__)


def copy_store(
    source: ObjectStore,
    target: ObjectStore,
    *,
    numbers: Iterable[int] = (),
    savepoint_names: Iterable[str] = (),
    concurrency: int = DEFAULT_CONCURRENCY,
    progress: Progress | None = None,
    dry_run: bool = False,
    mac: Mac | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> CopyPlan:
    """Bring a store, or the chosen checkpoints of it, to ``target`` and return what was done.

    Everything that is copied is verified on the way; damage at the source is an error, and nothing that
    depends on it is published. ``mac`` authenticates the source's manifests as well. ``dry_run`` only
    plans. Running it again is how a copy is resumed and how it follows its source.
    """
    if source.url == target.url and not source.url.startswith("memory://unnamed"):
        raise RefusedError(f"source and target are the same store, {source.url}")
    wish = CopyWish(frozenset(numbers), frozenset(savepoint_names))
    for _ in range(_MAX_ROUNDS):
        try:
            there = read_target(target)
            view = read_source(source, there, wish, mac=mac)
            plan = plan_copy(view, there, wish)
            if not dry_run:
                execute_copy(
                    source, target, view, plan, concurrency=concurrency, progress=progress, clock=clock
                )
        except SourceMoved:
            continue
        return plan
    raise RefusedError(
        "the source is pruned faster than it can be copied",
        hint="make a savepoint and copy that, or keep more checkpoints",
    )


def read_target(target: ObjectStore) -> TargetView:
    """What is at the target, an unfinished first copy included."""
    state = find_control_or_new(target)
    if state is None:
        return TargetView()
    top = None if _is_begun(target, state.control.floor) else locate_head(target)
    if top is None:
        return TargetView(state.control)
    loaded = load_manifest_bytes(top.data, top.number)
    return TargetView(top.control, view_of(loaded.manifest, loaded.sha256), _held(top.control, loaded))


def _held(control: Control, loaded: LoadedManifest) -> frozenset[str]:
    """What the target has for sure: nothing, if a copy stopped right after a deleted checkpoint."""
    return frozenset() if loaded.number in control.deleted else loaded.manifest.paths()


def _is_begun(target: ObjectStore, floor: int) -> bool:
    """Whether a copy has set the floor and then stopped, before the first manifest came."""
    if exists(target, manifest_key(floor)):
        return False
    hint = find_record(target, LATEST_KEY)
    try:
        return hint is None or decode_latest(hint) < floor
    except FormatError:
        return True


def read_source(
    source: ObjectStore, there: TargetView, wish: CopyWish, *, mac: Mac | None = None
) -> SourceView:
    """Read what the plan needs of the source, from one moment at which all of it existed."""
    head = find_head(source, mac=mac)
    if head is None:
        raise RefusedError(f"{source.url} has no checkpoint to copy")
    if head.lost is not None:
        _LOG.warning("%s: checkpoint %d %s", source.url, head.lost, lost_problem(head.lost, head.number))
    if there.control is not None and there.control.store_id != head.control.store_id:
        return SourceView(head.control, view_of(head.manifest, head.sha256), {})
    checkpoints: dict[int, Copied] = {}
    places: dict[str, set[Place]] = {}
    keys: set[str] = set()
    lists = set(there.held)
    wanted = numbers_to_read(head.control, head.number, there, wish)
    ends_with = there.head.number if there.head is not None else 0
    for number in wanted:
        loaded = _read_living(source, head, number, mac)
        checkpoints[number] = view_of(loaded.manifest, loaded.sha256)
        broken = _find_break(checkpoints, loaded)
        if broken is not None:
            raise moved_or(source, head.control, broken)
        if number != ends_with and number not in head.control.deleted:
            _collect(loaded, places, keys)
            try:
                _collect_settled(source, loaded, lists, places, keys)
            except FormatError as damage:
                raise moved_or(source, head.control, damage) from None
    frozen = {path: frozenset(found) for path, found in places.items()}
    return SourceView(
        head.control, view_of(head.manifest, head.sha256), checkpoints, frozen, frozenset(keys)
    )


def _read_living(source: ObjectStore, head: Head, number: int, mac: Mac | None) -> LoadedManifest:
    loaded = find_manifest(source, number, mac=mac)
    unannounced = (
        loaded is not None
        and loaded.manifest.kind is ManifestKind.TOMBSTONE
        and number not in head.control.deleted
    )
    if loaded is None or unannounced:
        raise source_lacks(source, head.control, manifest_key(number))
    if number < head.control.floor and not head.control.pinned(number, loaded.sha256):
        damage = FormatError(f"{manifest_key(number)} is not the manifest that its savepoint pins")
        raise moved_or(source, head.control, damage)
    return loaded


def _find_break(checkpoints: dict[int, Copied], loaded: LoadedManifest) -> FormatError | None:
    parent = checkpoints.get(loaded.manifest.parent_id)
    if parent is None or parent.original_sha256 == loaded.manifest.parent_sha256:
        return None
    return FormatError(
        f"{manifest_key(loaded.number)} does not follow {manifest_key(parent.number)}",
        hint="the source's history is broken; run ckpt verify on it",
    )


def _collect(loaded: LoadedManifest, places: dict[str, set[Place]], keys: set[str]) -> None:
    _collect_refs(loaded.manifest.artifacts(), places, keys)
    if loaded.manifest.encryption_key_id is not None:
        keys.add(MANIFEST_KEY_ID)


def _collect_settled(
    source: ObjectStore,
    loaded: LoadedManifest,
    lists: set[str],
    places: dict[str, set[Place]],
    keys: set[str],
) -> None:
    """Add what the lists of a manifest name. A list that the target holds it holds with all below it."""
    for _, content in walk_lists(source, loaded.manifest.settled(), known=lists):
        _collect_refs((part.ref for part in content.parts), places, keys)
        _collect_refs((ref.artifact() for ref in content.lists), places, keys)


def _collect_refs(refs: Iterable[ArtifactRef], places: dict[str, set[Place]], keys: set[str]) -> None:
    for ref in refs:
        if ref.path is not None:
            places.setdefault(ref.path, set()).add(Place(ref.path, ref.offset, ref.size_bytes, ref.sha256))
        if ref.data_key_id is not None:
            keys.add(ref.data_key_id)
