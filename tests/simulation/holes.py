"""The protocol with one rule taken out at a time: each must be found by a search, or the search is blind.

Every hole replaces one function of the real code, the one that is the rule, by what somebody who did
not know the rule would have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import Conflict, OutcomeUnknown, StaleAttempt
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    CheckpointId,
    CheckpointPaths,
    manifest_key,
    parse_attempt_key,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.records import Control, Pin, encode_control
from pyspark_checkpoint.history import (
    commit,
    control,
    delete,
    head,
    living,
    lookup,
    orphans,
    pins,
    publish,
    retain,
    rollback,
    rules,
    savepoint,
)
from pyspark_checkpoint.store.base import ObjectStore

Patch = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Hole:
    """A rule that is missing: what to patch, the scene in which that shows, and how it shows."""

    name: str
    patches: tuple[Patch, ...]
    scene: str
    shows: str
    """The first word of the violation."""
    faults: int | None = None
    all_powers: bool = False
    """Whether actors now do what their scene does not know of, so that nothing is searched in short."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """Run the block with the rule taken out."""
        patches = [patch() for patch in self.patches]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in reversed(patches):
                patch.stop()


def _patch(target: Any, name: str, new: Any) -> Patch:
    return lambda: mock.patch.object(target, name, new)


def _no_floor_check(store: ObjectStore, number: int, store_id: str) -> Control:
    return control.read_control(store, store_id=store_id).control


_settle_taken = publish.settle_taken
_check_floor = publish.check_floor
_delete_keys = ObjectStore.delete


def _read_back_is_enough(store: ObjectStore, number: int, *, nonce: str, run_id: str) -> None:
    """Found ours by reading back: remembered, so that the floor is not looked at again."""
    _settle_taken(store, number, nonce=nonce, run_id=run_id)
    _READ_BACK.add(nonce[:8])


def _floor_unless_read_back(store: ObjectStore, number: int, store_id: str) -> Control:
    if _READ_BACK:
        _READ_BACK.clear()
        return _no_floor_check(store, number, store_id)
    return _check_floor(store, number, store_id)


_READ_BACK: set[str] = set()


def _loser_looks_again(number: int, found: object) -> None:
    raise StaleAttempt(f"checkpoint {number} is taken; the next one is free")


def _same_run_is_ours(store: ObjectStore, number: int, *, nonce: str, run_id: str) -> None:
    found = publish.find_manifest(store, number)
    if found is None or found.manifest.run_id != run_id:
        _settle_taken(store, number, nonce=nonce, run_id=run_id)


def _abandon_deletes(self: commit.Run, attempt: CheckpointId) -> None:
    prefix = CheckpointPaths.checkpoint_dir(attempt)
    self.store.delete([info.key for info in self.store.list(prefix)])


def _fenced_deletes_manifest(store: ObjectStore, number: int, store_id: str) -> Control:
    record = _no_floor_check(store, number, store_id)
    if record.floor > number:
        store.delete([manifest_key(number)])
    return _check_floor(store, number, store_id)


def _living_before_the_floor(
    store: ObjectStore, plan: retain.PrunePlan, clock: Clock, **_: object
) -> retain.PruneResult:
    before = control.read_control(store).control
    alive = living.settle_living(store, before.changed(floor=plan.floor))
    if alive is None:
        alive = living.read_living(store, before.changed(floor=plan.floor))
    record = retain.raise_floor(store, plan, clock, set()).control
    removal = retain.remove_dead(store, alive, range(record.swept, record.floor))
    retain.raise_swept(store, record, clock)
    return retain.PruneResult(removal)


def _living_unchecked(store: ObjectStore, record: Control, **_: object) -> living.Living:
    try:
        return living.read_living(store, record)
    except living.MissingLiving:
        return living.Living(record, {record.floor: _NOTHING_NAMED}, frozenset())


class _NothingNamed:
    paths: frozenset[str] = frozenset()
    kind = None


_NOTHING_NAMED: Any = _NothingNamed()


def _read_pinned_or_nothing(store: ObjectStore, name: str, number: int, sha256: str) -> Any:
    found = living.find_summary(store, number)
    return _NOTHING_NAMED if found is None else found


def _blind_swap(
    store: ObjectStore, change: control.Change, clock: Clock, *, store_id: str | None = None
) -> control.ControlState:
    state = control.read_control(store, store_id=store_id)
    wanted = change(state.control)
    if wanted is None:
        return state
    data = encode_control(wanted)
    return control.ControlState(wanted, store.put(CONTROL_KEY, data), data)


def _any_number(key: str, alive: living.Living) -> bool:
    return parse_attempt_key(key) is not None and key not in alive.paths


def _bury_without_tombstone(store: ObjectStore, number: int, clock: Clock, **_: object) -> None:
    store.delete([manifest_key(number)])


def _mark_without_looking(store: ObjectStore, number: int, clock: Clock) -> Control:
    def change(record: Control) -> Control | None:
        return None if number in record.deleted else record.changed(deleted=record.deleted | {number})

    return control.swap_control(store, change, clock).control


def _drop_all_rollback_pins(record: Control, head_number: int) -> Mapping[str, Pin]:
    return {name: pin for name, pin in record.pins.items() if pins.parse_rollback_pin_name(name) is None}


def _control_by_plain_put(store: ObjectStore, clock: Clock, **_: object) -> control.ControlState:
    found = control.find_control(store)
    if found is not None:
        return found
    data = encode_control(Control(store_id=clock.uuid7()))
    for _attempt in range(5):
        try:
            return control.ControlState(control.decode_control(data), store.put(CONTROL_KEY, data), data)
        except (OutcomeUnknown, Conflict):
            continue
    raise OutcomeUnknown("no answer")


def _parents_generation(found: head.Head | None, run_id: str) -> int:
    return 1 if found is None else found.manifest.generation


def _head_manifest(self: commit.Run, found: head.Head) -> CheckpointManifest:
    return found.manifest


HOLES = (
    Hole(
        "the floor is not checked after the create",
        (_patch(publish, "check_floor", _no_floor_check),),
        "b1",
        "BELIEF",
    ),
    Hole(
        "found by read-back, the floor is not checked",
        (
            _patch(publish, "settle_taken", _read_back_is_enough),
            _patch(publish, "check_floor", _floor_unless_read_back),
        ),
        "b1",
        "BELIEF",
        faults=1,
    ),
    Hole(
        "a reader does not read _control again: stale hint",
        (_patch(head, "floor_allows", lambda *_: True),),
        "a1",
        "READER",
    ),
    Hole(
        "a reader does not read _control again: prune",
        (_patch(head, "floor_allows", lambda *_: True),),
        "a2",
        "READER",
    ),
    Hole(
        "a reader does not read _control again: zombie",
        (_patch(head, "floor_allows", lambda *_: True),),
        "a3",
        "READER",
    ),
    Hole(
        "a reader by number does not look at the floor",
        (_patch(lookup, "is_visible", lambda *_: True),),
        "a4",
        "READER",
    ),
    Hole("the hint is believed", (_patch(head, "_climb", lambda store, start: start),), "a2", "READER"),
    Hole(
        "the loser is not fenced: two new runs",
        (
            _patch(publish, "refuse_loser", _loser_looks_again),
            _patch(commit.Run, "_check_takeover", lambda *_: None),
        ),
        "e1",
        "FENCE",
    ),
    Hole(
        "the loser is not fenced: the old run",
        (
            _patch(publish, "refuse_loser", _loser_looks_again),
            _patch(commit.Run, "_check_takeover", lambda *_: None),
        ),
        "e3",
        "FENCE",
    ),
    Hole(
        "a run that looks again does not notice its heir",
        (_patch(commit.Run, "_check_takeover", lambda *_: None),),
        "e4",
        "FENCE",
    ),
    Hole(
        "manifests do not name the runs before",
        (_patch(rules, "was_taken_over", lambda *_: False),),
        "u1",
        "FENCE",
    ),
    Hole(
        "an earlier attempt counts as this one",
        (_patch(publish, "settle_taken", _same_run_is_ours),),
        "e4",
        "BELIEF",
    ),
    Hole(
        "the generation is not raised",
        (_patch(rules, "next_generation", _parents_generation),),
        "e1",
        "GENERATION",
    ),
    Hole(
        "who gives up deletes what he staged",
        (_patch(commit.Run, "abandon", _abandon_deletes),),
        "m1",
        "HOLE",
        all_powers=True,
    ),
    Hole(
        "who is fenced deletes what he staged",
        (_patch(commit.Run, "abandon", _abandon_deletes),),
        "m2",
        "HOLE",
        all_powers=True,
    ),
    Hole(
        "who is fenced deletes his manifest",
        (_patch(publish, "check_floor", _fenced_deletes_manifest),),
        "b3",
        "HOLE",
        all_powers=True,
    ),
    Hole(
        "what lives is read before the swap",
        (_patch(retain, "execute_prune", _living_before_the_floor),),
        "d1",
        "HOLE",
    ),
    Hole(
        "what lives is not checked again",
        (_patch(retain, "settle_living", _living_unchecked),),
        "d2",
        "HOLE",
    ),
    Hole(
        "a missing pinned manifest is passed over",
        (
            _patch(living, "_read_pinned", _read_pinned_or_nothing),
            _patch(living, "floor_is_ours", lambda *_: True),
        ),
        "i3",
        "HOLE",
    ),
    Hole(
        "a rollback does not pin its target: prune",
        (_patch(rollback, "pin_target", lambda *_: None),),
        "d1",
        "HOLE",
    ),
    Hole(
        "a rollback does not pin its target: unsave",
        (_patch(rollback, "pin_target", lambda *_: None),),
        "o1",
        "HOLE",
    ),
    Hole(
        "a prune drops the pin of a rollback under way",
        (_patch(retain, "drop_stale_pins", _drop_all_rollback_pins),),
        "d1",
        "HOLE",
    ),
    Hole(
        "anything may be pinned",
        (
            _patch(savepoint, "may_pin", lambda *_: True),
            _patch(
                savepoint,
                "_read_pinnable",
                lambda store, record, number: (
                    savepoint.find_manifest(store, number) or savepoint.RefusedError
                ),
            ),
        ),
        "c1",
        "HOLE",
    ),
    Hole(
        "_control is put, not swapped: the floor falls",
        (_patch(retain, "swap_control", _blind_swap),),
        "f2",
        "CONTROL",
    ),
    Hole(
        "_control is put, not swapped: a savepoint and a prune",
        (_patch(retain, "swap_control", _blind_swap), _patch(savepoint, "swap_control", _blind_swap)),
        "c1",
        "CONTROL",
    ),
    Hole(
        "nothing to write, and nobody looks",
        (_patch(commit.Run, "_confirm_head", _head_manifest),),
        "h2",
        "BELIEF",
    ),
    Hole(
        "the collector does not look at numbers",
        (_patch(orphans, "is_orphan_artifact", _any_number),),
        "i1",
        "HOLE",
    ),
    Hole("a manifest may name anything", (_patch(rules, "check_names", lambda *_: None),), "r1", "HOLE"),
    Hole(
        "pinned checkpoints may be deleted",
        (_patch(delete, "mark_deleted", _mark_without_looking),),
        "t1",
        "PIN",
    ),
    Hole(
        "a deleted checkpoint leaves no tombstone",
        (_patch(delete, "bury", _bury_without_tombstone),),
        "t4",
        "HOLE",
    ),
    Hole(
        "the control record is made by a plain put",
        (_patch(commit, "ensure_control", _control_by_plain_put),),
        "x1",
        "CONTROL",
    ),
)
