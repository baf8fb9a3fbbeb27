"""Copying a history, or chosen checkpoints of it, to another store on any cloud.

``copy_plan`` says what holds at the target. The order of the steps makes it so: the control record, wrapped
keys and artifacts first, then what is pinned below the floor, then manifests in ascending order, each with
its seal and statuses, then pins, and the hint last. A copy that was interrupted is finished by the next
one; one that follows a growing source brings what is new.

An object is fetched into memory, or into a temporary file when it is large; every range that a manifest
names is checked, and a pack down to its last byte; only then is it put. So the target never holds a wrong
object, and one that it has, of the right size, is one that an earlier copy has proved.

Do not prune the target while a copy runs; pruning the source is fine: the plan is made again.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import IO

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.crypto.aead import MANIFEST_KEY_ID
from pyspark_checkpoint.errors import (
    Busy,
    Diverged,
    FormatError,
    IntegrityError,
    InUse,
    NoCheckpoint,
    NotFound,
    RefusedError,
    Unavailable,
)
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import Mac
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    LATEST_KEY,
    committed_key,
    data_key_key,
    failed_key,
    manifest_key,
    seal_key,
)
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.pack import (
    FOOTER_BYTES,
    PACK_HEADER,
    PACK_SUFFIX,
    PACK_TARGET_BYTES,
    pack_tail_bytes,
    read_pack_index,
)
from pyspark_checkpoint.format.records import Control, decode_latest, encode_control
from pyspark_checkpoint.history.control import (
    find_control,
    find_control_or_new,
    has_changed_since,
    swap_control,
)
from pyspark_checkpoint.history.copy_plan import (
    CopiedCheckpoint,
    CopyPlan,
    CopySelection,
    ObjectRange,
    SourceView,
    TargetView,
    diverged,
    numbers_to_read,
    plan_copy,
    view_of,
)
from pyspark_checkpoint.history.head import Head, find_head, locate_head, lost_problem
from pyspark_checkpoint.history.manifest_reader import (
    LoadedManifest,
    create_object,
    exists,
    find_manifest,
    find_record,
    load_manifest_bytes,
)
from pyspark_checkpoint.history.publish import move_latest
from pyspark_checkpoint.history.settle import walk_lists
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.parallel import DEFAULT_CONCURRENCY, Progress, iter_bounded

_MAX_ROUNDS = 5
_SOURCE_HINT = "the source is damaged: run ckpt verify on it"

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
        raise RefusedError(
            f"source and target are the same store, {source.url}", hint="give another target"
        )
    selection = CopySelection(frozenset(numbers), frozenset(savepoint_names))
    for _ in range(_MAX_ROUNDS):
        try:
            there = read_target(target)
            view = read_source(source, there, selection, mac=mac)
            plan = plan_copy(view, there, selection)
            if not dry_run:
                execute_copy(
                    source, target, view, plan, concurrency=concurrency, progress=progress, clock=clock
                )
        except SourceMoved:
            continue
        return plan
    raise Busy(
        f"gave up after the source was pruned {_MAX_ROUNDS} times while it was copied",
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
    source: ObjectStore, there: TargetView, selection: CopySelection, *, mac: Mac | None = None
) -> SourceView:
    """Read what the plan needs of the source, from one moment at which all of it existed."""
    head = find_head(source, mac=mac)
    if head is None:
        raise NoCheckpoint(f"{source.url} has no checkpoint to copy", hint="check the URL with ckpt list")
    if head.lost is not None:
        _LOG.warning("%s: checkpoint %d %s", source.url, head.lost, lost_problem(head.lost, head.number))
    if there.control is not None and there.control.store_id != head.control.store_id:
        return SourceView(head.control, view_of(head.manifest, head.sha256), {})
    checkpoints: dict[int, CopiedCheckpoint] = {}
    ranges: dict[str, set[ObjectRange]] = {}
    keys: set[str] = set()
    lists = set(there.held)
    wanted = numbers_to_read(head.control, head.number, there, selection)
    ends_with = there.head.number if there.head is not None else 0
    for number in wanted:
        loaded = _read_live(source, head, number, mac)
        checkpoints[number] = view_of(loaded.manifest, loaded.sha256)
        broken = _find_break(checkpoints, loaded)
        if broken is not None:
            raise moved_or(source, head.control, broken)
        if number != ends_with and number not in head.control.deleted:
            _collect(loaded, ranges, keys)
            try:
                _collect_settled(source, loaded, lists, ranges, keys)
            except FormatError as damage:
                raise moved_or(source, head.control, damage) from None
    frozen = {path: frozenset(found) for path, found in ranges.items()}
    return SourceView(
        head.control, view_of(head.manifest, head.sha256), checkpoints, frozen, frozenset(keys)
    )


def _read_live(source: ObjectStore, head: Head, number: int, mac: Mac | None) -> LoadedManifest:
    loaded = find_manifest(source, number, mac=mac)
    unannounced = (
        loaded is not None
        and loaded.manifest.kind is ManifestKind.TOMBSTONE
        and number not in head.control.deleted
    )
    if loaded is None or unannounced:
        raise source_lacks(source, head.control, manifest_key(number))
    if number < head.control.floor and not head.control.pinned(number, loaded.sha256):
        damage = FormatError(
            f"{manifest_key(number)} is not the manifest that its savepoint pins", hint=_SOURCE_HINT
        )
        raise moved_or(source, head.control, damage)
    return loaded


def _find_break(checkpoints: dict[int, CopiedCheckpoint], loaded: LoadedManifest) -> FormatError | None:
    parent = checkpoints.get(loaded.manifest.parent_id)
    if parent is None or parent.original_sha256 == loaded.manifest.parent_sha256:
        return None
    return FormatError(
        f"{manifest_key(loaded.number)} does not follow {manifest_key(parent.number)}",
        hint=_SOURCE_HINT,
    )


def _collect(loaded: LoadedManifest, ranges: dict[str, set[ObjectRange]], keys: set[str]) -> None:
    _collect_refs(loaded.manifest.artifacts(), ranges, keys)
    if loaded.manifest.encryption_key_id is not None:
        keys.add(MANIFEST_KEY_ID)


def _collect_settled(
    source: ObjectStore,
    loaded: LoadedManifest,
    lists: set[str],
    ranges: dict[str, set[ObjectRange]],
    keys: set[str],
) -> None:
    """Add what the lists of a manifest name. A list that the target holds it holds with all below it."""
    for _, content in walk_lists(source, loaded.manifest.settled(), known=lists):
        _collect_refs((part.ref for part in content.parts), ranges, keys)
        _collect_refs((ref.artifact() for ref in content.lists), ranges, keys)


def _collect_refs(refs: Iterable[ArtifactRef], ranges: dict[str, set[ObjectRange]], keys: set[str]) -> None:
    for ref in refs:
        if ref.path is not None:
            ranges.setdefault(ref.path, set()).add(
                ObjectRange(ref.path, ref.offset, ref.size_bytes, ref.sha256)
            )
        if ref.data_key_id is not None:
            keys.add(ref.data_key_id)


# --- the steps --------------------------------------------------------------------------------------


class SourceMoved(Exception):
    """The source was pruned while it was read; the plan is to be made again."""


def source_lacks(source: ObjectStore, seen: Control, key: str) -> Exception:
    """What it means that the source lacks a thing that it had: pruned meanwhile, or damage."""
    return moved_or(source, seen, FormatError(f"the source lacks {key}", hint=_SOURCE_HINT))


def moved_or(source: ObjectStore, seen: Control, damage: FormatError) -> Exception:
    """What looks like damage is none if the control record has changed since ``seen``: look again then."""
    return SourceMoved() if has_changed_since(source, seen) else damage


def execute_copy(
    source: ObjectStore,
    target: ObjectStore,
    view: SourceView,
    plan: CopyPlan,
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
    progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Do what ``plan_copy`` decided: control record, keys, artifacts, manifests, pins, hint."""
    job = _Copy(source, target, view, plan, clock)
    begun = job.ensure_control()
    job.copy_keys()
    job.copy_objects(concurrency, progress, look_first=begun)
    for number in plan.below:
        job.publish(number)
        job.copy_records(number)
    job.merge_pins(only_below=True)
    job.raise_floor()
    job.record_deleted()
    for number in plan.manifests:
        job.publish(number)
        job.copy_records(number)
    for number in sorted({*plan.records_of} - {*plan.manifests, *plan.below}):
        job.copy_records(number)
    job.merge_pins(only_below=False)
    if plan.manifests:
        move_latest(target, plan.manifests[-1])


@dataclass(frozen=True, slots=True)
class _Copy:
    """The steps of one copy. Each may be repeated after a crash."""

    source: ObjectStore
    target: ObjectStore
    view: SourceView
    plan: CopyPlan
    clock: Clock

    def ensure_control(self) -> bool:
        """Make the target's control record. Says whether the target may have some objects already."""
        plan = self.plan
        state = find_control(self.target)
        if state is None:
            fresh = Control(store_id=plan.store_id, floor=plan.floor, swept=plan.floor)
            if create_record(self.target, CONTROL_KEY, encode_control(fresh), self.clock):
                return False
            state = find_control(self.target)
        if state is None or state.control.store_id != plan.store_id:
            raise InUse("another writer has begun to write to the target", hint="copy to an empty URL")
        return True

    def raise_floor(self) -> None:
        """Bring the target's floor up to the plan's.

        A target that starts over shows no checkpoint from here until the next manifest is there: an
        error for a moment, rather than a history with a gap.
        """
        floor = self.plan.floor

        def change(control: Control) -> Control | None:
            if control.floor >= floor:
                return None
            deleted = frozenset(number for number in control.deleted if number >= floor)
            return control.changed(floor=floor, deleted=deleted)

        self._swap(change)

    def record_deleted(self) -> None:
        """Say which of the numbers to come are tombstones, before they come."""
        deleted = self.plan.deleted

        def change(control: Control) -> Control | None:
            if deleted <= control.deleted:
                return None
            return control.changed(deleted=control.deleted | deleted)

        if deleted:
            self._swap(change)

    def merge_pins(self, *, only_below: bool) -> None:
        """Pin what the source pins; a name that means another checkpoint here follows the source."""
        floor = self.plan.floor
        wanted = {n: pin for n, pin in self.plan.pins.items() if not only_below or pin.number < floor}

        def change(control: Control) -> Control | None:
            pins = {**control.pins, **wanted}
            return None if pins == dict(control.pins) else control.changed(pins=pins)

        if wanted:
            self._swap(change)

    def _swap(self, change: Callable[[Control], Control | None]) -> None:
        swap_control(self.target, change, self.clock, store_id=self.plan.store_id)

    def copy_keys(self) -> None:
        """Bring wrapped data keys that are new. One that is there stays: it may be rewrapped there."""
        for data_key_id in self.plan.data_key_ids:
            key = data_key_key(data_key_id)
            if exists(self.target, key):
                continue
            data = find_record(self.source, key)
            if data is None:
                raise source_lacks(self.source, self.view.control, key)
            create_record(self.target, key, data, self.clock)

    def copy_objects(self, concurrency: int, progress: Progress | None, *, look_first: bool) -> None:
        """Bring the artifacts, several at a time, each proved."""
        ranges = self.view.ranges
        sizes = {path: sum(piece.size_bytes for piece in ranges[path]) for path in self.plan.objects}
        total, done = sum(sizes.values()), 0

        def move(path: str) -> str:
            if not (look_first and has_object(self.source, self.target, path)):
                copy_object(self.source, self.target, path, ranges[path], self.clock)
            return path

        try:
            for path in iter_bounded(move, self.plan.objects, concurrency):
                done += sizes[path]
                if progress is not None:
                    progress(done, total)
        except NotFound as error:
            raise source_lacks(self.source, self.view.control, error.key or "an object") from None

    def publish(self, number: int) -> None:
        """Create a manifest, byte for byte the source's."""
        loaded, planned = find_manifest(self.source, number), self.view.checkpoints[number]
        if loaded is not None and loaded.manifest.deleted_sha256 == planned.sha256:
            raise SourceMoved  # deleted since it was read, or only now given its tombstone
        if loaded is None or loaded.sha256 != planned.sha256:
            raise source_lacks(self.source, self.view.control, manifest_key(number))
        if not create_record(self.target, manifest_key(number), loaded.data, self.clock):
            raise diverged(number)

    def copy_records(self, number: int) -> None:
        """Bring a checkpoint's sink statuses and seal. One that is there already is never replaced."""
        for sink in self.view.checkpoints[number].sink_names:
            for failure in count():
                if not self._copy_record(failed_key(number, sink, failure)):
                    break
            self._copy_record(committed_key(number, sink))
        self._copy_record(seal_key(number))

    def _copy_record(self, key: str) -> bool:
        data = find_record(self.source, key)
        if data is not None:
            create_record(self.target, key, data, self.clock)
        return data is not None


# --- one object -------------------------------------------------------------------------------------


MEMORY_BYTES = 2 * PACK_TARGET_BYTES
"""Larger objects go through a temporary file."""
_ATTEMPTS = 4
_READ_BYTES = 1024 * 1024
_FIRST_DELAY_SECONDS = 0.2


def copy_object(
    source: ObjectStore, target: ObjectStore, path: str, ranges: Iterable[ObjectRange], clock: Clock
) -> int:
    """Copy one object, proved, and return its size. ``NotFound`` when the source has it no longer."""
    with tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES) as spool:
        size_bytes = _fetch(source, path, spool, clock)
        check_ranges(path, spool, size_bytes, ranges)
        if not create_object(target, path, spool, clock):
            _check_size(path, target.head(path).size_bytes, size_bytes)
    return size_bytes


def has_object(source: ObjectStore, target: ObjectStore, path: str) -> bool:
    """Whether the target has the object already, from a copy that did not finish."""
    try:
        there = target.head(path).size_bytes
    except NotFound:
        return False
    _check_size(path, there, source.head(path).size_bytes)
    return True


def _check_size(path: str, there: int, size_bytes: int) -> None:
    if there != size_bytes:
        raise Diverged(
            f"the target has another object at {path}: {there} bytes, not {size_bytes}",
            hint="somebody wrote to the target by hand; copy to an empty URL",
        )


def create_record(target: ObjectStore, key: str, data: bytes, clock: Clock) -> bool:
    """Create a small record. False if the target has another one under this key; the same one is fine."""
    return create_object(target, key, data, clock) or target.get(key) == data


def check_ranges(path: str, file: IO[bytes], size_bytes: int, ranges: Iterable[ObjectRange]) -> None:
    """Check every range of an object that a manifest names, and all of a pack."""
    for piece in sorted(ranges):
        if piece.offset + piece.size_bytes > size_bytes:
            raise FormatError(
                f"{path} has {size_bytes} bytes, fewer than its manifest says", hint=_SOURCE_HINT
            )
        actual = _digest(file, piece.offset, piece.size_bytes)
        if actual != piece.sha256:
            raise IntegrityError(f"{path}@{piece.offset}", piece.sha256, actual, hint=_SOURCE_HINT)
    if path.endswith(PACK_SUFFIX):
        _check_pack(path, file, size_bytes)


def _check_pack(path: str, file: IO[bytes], size_bytes: int) -> None:
    """Check what no manifest knows of a pack: header, index, and parts that nothing names any more."""
    head = _read(file, 0, len(PACK_HEADER))
    footer = _read(file, max(0, size_bytes - FOOTER_BYTES), FOOTER_BYTES)
    tail = _read(file, max(0, size_bytes - pack_tail_bytes(path, footer)), size_bytes)
    for entry in read_pack_index(path, head, tail, object_size_bytes=size_bytes):
        ref = entry.ref
        actual = _digest(file, ref.offset, ref.size_bytes)
        if actual != ref.sha256:
            raise IntegrityError(f"{path}@{ref.offset}", ref.sha256, actual, hint=_SOURCE_HINT)


def _read(file: IO[bytes], start: int, size_bytes: int) -> bytes:
    file.seek(start)
    return file.read(size_bytes)


def _digest(file: IO[bytes], offset: int, size_bytes: int) -> str:
    digest = hashlib.sha256()
    file.seek(offset)
    while size_bytes:
        piece = file.read(min(size_bytes, _READ_BYTES))
        digest.update(piece)
        size_bytes -= len(piece)
    return digest.hexdigest()


def _fetch(source: ObjectStore, path: str, spool: IO[bytes], clock: Clock) -> int:
    for attempt in range(_ATTEMPTS):
        spool.seek(0)
        spool.truncate()
        try:
            return sum(spool.write(chunk) for chunk in source.stream(path))
        except Unavailable:
            if attempt + 1 == _ATTEMPTS:
                raise
            clock.sleep(_FIRST_DELAY_SECONDS * 2**attempt)
    raise AssertionError("unreachable")
