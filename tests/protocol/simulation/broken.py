"""What somebody would have written who did not know the rule: one function for each hole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import Conflict, FencedError, NotFound, OutcomeUnknown, StaleAttempt
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    CheckpointId,
    CheckpointPaths,
    manifest_key,
    parse_attempt_key,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.records import Control, Pin, decode_control, encode_control
from pyspark_checkpoint.history import control, head, live_set, publish
from pyspark_checkpoint.history import retention as retain
from pyspark_checkpoint.history import run as commit
from pyspark_checkpoint.history.deletion import remove_dead
from pyspark_checkpoint.history.manifest_reader import LoadedManifest, find_manifest
from pyspark_checkpoint.store.base import ObjectStore


def no_floor_check(store: ObjectStore, number: int, store_id: str) -> Control:
    return control.read_control(store, store_id=store_id).control


_REAL_SETTLE_TAKEN = publish.settle_taken
_REAL_CHECK_FLOOR = publish.check_floor
_REAL_PUBLISH = commit.Run._publish
_REAL_CHECK_TAKEOVER = commit.Run._check_takeover


def read_back_is_enough(store: ObjectStore, number: int, *, nonce: str, run_id: str) -> None:
    """Found ours by reading back: remembered, so that the floor is not looked at again."""
    _REAL_SETTLE_TAKEN(store, number, nonce=nonce, run_id=run_id)
    _READ_BACK.add(nonce[:8])


def floor_unless_read_back(store: ObjectStore, number: int, store_id: str) -> Control:
    if _READ_BACK:
        _READ_BACK.clear()
        return no_floor_check(store, number, store_id)
    return _REAL_CHECK_FLOOR(store, number, store_id)


_READ_BACK: set[str] = set()


def loser_looks_again(number: int, found: object) -> None:
    raise StaleAttempt(f"checkpoint {number} is taken; the next one is free")


def every_loser_is_fenced(self: commit.Run, number: int, error: FencedError) -> FencedError:
    """Also a new run, which lost to the ordinary commit of the run that it was to take over."""
    self._fence = error
    return error


def asking_is_publishing(self: commit.Run, found: head.Head | None) -> None:
    """Whoever has asked for a number, and finds another run's later head, takes himself for taken over."""
    self._begun = self._begun or self._asked_generation is not None
    _REAL_CHECK_TAKEOVER(self, found)


def same_run_is_ours(store: ObjectStore, number: int, *, nonce: str, run_id: str) -> None:
    found = find_manifest(store, number)
    if found is None or found.manifest.run_id != run_id:
        _REAL_SETTLE_TAKEN(store, number, nonce=nonce, run_id=run_id)


def publish_or_delete(
    self: commit.Run, draft: CheckpointManifest, attempt: CheckpointId, *rest: Any, **named: Any
) -> CheckpointManifest:
    try:
        return _REAL_PUBLISH(self, draft, attempt, *rest, **named)
    except (FencedError, StaleAttempt, OutcomeUnknown):
        prefix = CheckpointPaths.checkpoint_dir(attempt)
        self.store.delete([info.key for info in self.store.list(prefix)])
        raise


def fenced_deletes_manifest(store: ObjectStore, number: int, store_id: str) -> Control:
    record = no_floor_check(store, number, store_id)
    if record.floor > number:
        store.delete([manifest_key(number)])
    return _REAL_CHECK_FLOOR(store, number, store_id)


def live_set_before_the_floor(
    store: ObjectStore, plan: retain.PrunePlan, clock: Clock, **_: object
) -> retain.PruneResult:
    before = control.read_control(store).control
    alive = live_set.settle_live_set(store, before.changed(floor=plan.floor))
    if alive is None:
        alive = live_set.read_live_set(store, before.changed(floor=plan.floor))
    record = retain.raise_floor(store, plan, clock, set()).control
    removal = remove_dead(store, alive, range(record.swept, record.floor))
    retain.raise_swept(store, record, clock)
    return retain.PruneResult(removal)


def live_set_unchecked(store: ObjectStore, record: Control, **_: object) -> live_set.LiveSet:
    try:
        return live_set.read_live_set(store, record)
    except live_set.MissingFromLiveSet:
        return live_set.LiveSet(record, {record.floor: _NOTHING_NAMED}, frozenset())


class _NothingNamed:
    paths: frozenset[str] = frozenset()
    settled = ()
    kind = None


_NOTHING_NAMED: Any = _NothingNamed()


def read_pinned_or_nothing(store: ObjectStore, name: str, number: int, sha256: str) -> Any:
    found = live_set.find_summary(store, number)
    return _NOTHING_NAMED if found is None else found


def blind_swap(
    store: ObjectStore, change: control.ControlChange, clock: Clock, *, store_id: str | None = None
) -> control.ControlState:
    state = control.read_control(store, store_id=store_id)
    wanted = change(state.control)
    if wanted is None:
        return state
    data = encode_control(wanted)
    return control.ControlState(wanted, store.put(CONTROL_KEY, data), data)


def any_number(key: str, alive: live_set.LiveSet) -> bool:
    return parse_attempt_key(key) is not None and key not in alive.paths


def delete_without_tombstone(store: ObjectStore, number: int, clock: Clock, **_: object) -> None:
    store.delete([manifest_key(number)])


def mark_without_looking(store: ObjectStore, number: int, clock: Clock, **_: object) -> Control:
    def change(record: Control) -> Control | None:
        return None if number in record.deleted else record.changed(deleted=record.deleted | {number})

    return control.swap_control(store, change, clock).control


def drop_all_rollback_pins(record: Control, head_number: int) -> Mapping[str, Pin]:
    return {name: pin for name, pin in record.pins.items() if control.parse_rollback_pin_name(name) is None}


def control_by_plain_put(store: ObjectStore, clock: Clock, **_: object) -> control.ControlState:
    found = control.find_control(store)
    if found is not None:
        return found
    data = encode_control(Control(store_id=clock.uuid7()))
    for _attempt in range(5):
        try:
            return control.ControlState(decode_control(data), store.put(CONTROL_KEY, data), data)
        except (OutcomeUnknown, Conflict):
            continue
    raise OutcomeUnknown("no answer")


def parents_generation(found: head.Head | None, run_id: str) -> int:
    return 1 if found is None else found.manifest.generation


def head_manifest(self: commit.Run, found: head.Head) -> CheckpointManifest:
    return found.manifest


def whatever_lies_there(store: ObjectStore, record: Control, number: int) -> LoadedManifest:
    found = find_manifest(store, number)
    if found is None:
        raise NotFound(f"no manifest {number}")
    return found
