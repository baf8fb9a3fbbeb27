"""Doing what ``plan_copy`` decided. The order of the steps is the safety."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import FormatError, NotFound, RefusedError
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    committed_key,
    data_key_key,
    failed_key,
    manifest_key,
    seal_key,
)
from pyspark_checkpoint.format.records import Control, encode_control
from pyspark_checkpoint.history.control import find_control, swap_control
from pyspark_checkpoint.history.copy_objects import copy_object, create_record, has_object
from pyspark_checkpoint.history.copy_plan import CopyPlan, SourceView, diverged
from pyspark_checkpoint.history.manifest_reader import exists, find_manifest, find_record
from pyspark_checkpoint.history.parallel import DEFAULT_CONCURRENCY, iter_bounded
from pyspark_checkpoint.history.publish import move_latest
from pyspark_checkpoint.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a copy is: objects and bytes of artifacts, out of those planned."""

    objects_done: int
    objects_total: int
    bytes_done: int
    bytes_total: int
    key: str


Progress = Callable[[CopyProgress], None]


class SourceMoved(Exception):
    """The source was pruned while it was read; the plan is to be made again."""


def source_lacks(source: ObjectStore, seen: Control, key: str) -> Exception:
    """What it means that the source lacks a thing that it had: pruned meanwhile, or damage."""
    damage = FormatError(f"the source lacks {key}", hint="run ckpt verify on the source")
    return moved_or(source, seen, damage)


def moved_or(source: ObjectStore, seen: Control, damage: FormatError) -> Exception:
    """What looks like damage is none if the control record has changed since ``seen``: look again then."""
    now = find_control(source, store_id=seen.store_id)
    return SourceMoved() if now is not None and now.control.counter != seen.counter else damage


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
            raise RefusedError("somebody else began to write to the target", hint="copy to an empty place")
        return True

    def raise_floor(self) -> None:
        """Bring the target's floor up to the plan's.

        A target that begins anew shows no checkpoint from here until the next manifest is there: an
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
        places = self.view.places
        sizes = {path: sum(place.size_bytes for place in places[path]) for path in self.plan.objects}
        total, done = sum(sizes.values()), [0, 0]

        def move(path: str) -> str:
            if not (look_first and has_object(self.source, self.target, path)):
                copy_object(self.source, self.target, path, places[path], self.clock)
            return path

        try:
            for path in iter_bounded(move, self.plan.objects, concurrency):
                done[0] += 1
                done[1] += sizes[path]
                if progress is not None:
                    progress(CopyProgress(done[0], len(sizes), done[1], total, path))
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
