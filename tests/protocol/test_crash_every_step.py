"""A crash before and after every store call of every operation, and every answer lost once.

Each operation runs once to count its calls, then once more for each call and each kind of fault. What
is left is read by another process: it finds the old or the new state, byte for byte and never a mix;
``verify`` finds nothing, the next commit works, and what was left over can be tidied up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pytest

from pyspark_checkpoint.crypto.keyring import KeyRing
from pyspark_checkpoint.errors import CheckpointError
from pyspark_checkpoint.history.control import read_control
from pyspark_checkpoint.history.recovery import recover_latest_validated
from pyspark_checkpoint.history.rekey import rekey
from pyspark_checkpoint.history.replication import copy_store
from pyspark_checkpoint.history.seal import write_seal
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.faulty_store import FaultKind, FaultyStore, SimulatedCrash, fault_at
from tests.protocol.crash_world import (
    BOTH_RINGS,
    NEW_RING,
    OLD_RING,
    View,
    contents,
    make_store,
    open_history,
    save_epoch,
    store_of,
    view,
)
from tests.protocol.simulation.clock import DAY_MS, SimulatedClock

PLAIN = make_store(4)
ENCRYPTED = make_store(3, ring=OLD_RING)
KINDS = (
    FaultKind.CRASH_BEFORE,
    FaultKind.CRASH_AFTER,
    FaultKind.LOST_RESPONSE,
    FaultKind.LOST_REQUEST,
    FaultKind.UNAVAILABLE,
)

DAILY = int(os.environ.get("SEEDS", "0")) >= 10_000
"""Whether every call is tried with every kind of fault, as ``make test-integration`` does."""
THINNED = {FaultKind.LOST_REQUEST: 2, FaultKind.UNAVAILABLE: 2}
"""Faults that change nothing in the store: otherwise every second call is tried."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that a process does to a store, and where it begins."""

    name: str
    act: Callable[[ObjectStore], object]
    begin: Mapping[str, bytes]
    ring: KeyRing | None = None
    repeatable: bool = False
    """Whether doing it again after a crash finishes it, without an error."""
    least_calls: int = 3


def _claimed() -> dict[str, bytes]:
    """Another process of the run that then replaces the newest epoch has claimed the store."""
    store = store_of(PLAIN)
    open_history(store, 6, run_id="run-2").claim()
    return contents(store)


def _commit_and_prune(store: ObjectStore) -> None:
    save_epoch(open_history(store, 2, keep=2), 5)


def _seal(store: ObjectStore) -> None:
    head = open_history(store, 2).load_latest()
    assert head is not None
    write_seal(store, head, {"commits/4": b"v1"}, SimulatedClock(2), check=lambda *_: None)


def _cleanup(store: ObjectStore) -> None:
    open_history(store, 2).cleanup_orphans(grace_ms=-DAY_MS)


def _rekey(store: ObjectStore) -> None:
    store_id = read_control(store).control.store_id
    rekey(store, store_id, BOTH_RINGS, clock=SimulatedClock(2))


def _with_orphans() -> dict[str, bytes]:
    """What is left by a writer that was fenced after it had staged, and a prune that was cut short."""
    store = store_of(PLAIN)
    loser = open_history(store, 7)
    loser.attempt()
    save_epoch(open_history(store, 8), 5)
    with pytest.raises(CheckpointError):
        save_epoch(loser, 5, "too late")
    pruned = FaultyStore(store, fault_at(16, FaultKind.CRASH_BEFORE))
    with pytest.raises(SimulatedCrash):
        open_history(pruned, 9).prune(1)
    return contents(store)


def _pruned_to_savepoint() -> dict[str, bytes]:
    store = store_of(PLAIN)
    open_history(store, 3).prune(1)
    return contents(store)


OPERATIONS = (
    Operation("first commit", lambda store: save_epoch(open_history(store, 2), 1), {}),
    Operation(
        "first commit, encrypted", lambda s: save_epoch(open_history(s, 2, ring=OLD_RING), 1), {}, OLD_RING
    ),
    Operation("claim", lambda store: open_history(store, 2).claim(), PLAIN, repeatable=True),
    Operation("commit", lambda store: save_epoch(open_history(store, 2), 5), PLAIN),
    Operation(
        "commit, encrypted", lambda s: save_epoch(open_history(s, 2, ring=OLD_RING), 4), ENCRYPTED, OLD_RING
    ),
    Operation(
        "replacement", lambda s: save_epoch(open_history(s, 2), 4, "again"), _claimed(), repeatable=True
    ),
    Operation("commit and prune", _commit_and_prune, PLAIN),
    Operation("prune", lambda store: open_history(store, 2).prune(2), PLAIN, repeatable=True),
    Operation(
        "savepoint", lambda store: open_history(store, 2).savepoint("second", 2), PLAIN, repeatable=True
    ),
    Operation("remove savepoint", lambda store: open_history(store, 2).remove_savepoint("first"), PLAIN),
    Operation("rollback", lambda store: open_history(store, 2).rollback(2), PLAIN, repeatable=True),
    Operation(
        "delete checkpoint",
        lambda store: open_history(store, 2).delete_checkpoint(2),
        PLAIN,
        repeatable=True,
    ),
    Operation("clean up orphans", _cleanup, _with_orphans(), repeatable=True),
    Operation("seal", _seal, PLAIN, repeatable=True),
    Operation("rekey", _rekey, ENCRYPTED, BOTH_RINGS, repeatable=True),
    Operation(
        "remove savepoint below the floor",
        lambda store: open_history(store, 2).remove_savepoint("first"),
        _pruned_to_savepoint(),
    ),
    Operation(
        "roll back below the floor",
        lambda store: open_history(store, 2).rollback(1),
        _pruned_to_savepoint(),
        repeatable=True,
    ),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_old_or_new_and_never_a_mix(operation: Operation, kind: FaultKind) -> None:
    """Whatever happens to any one call of the operation, readers and the next writer are safe."""
    before = view(store_of(operation.begin), operation.ring)
    undisturbed = store_of(operation.begin)
    counter = FaultyStore(undisturbed, clock=SimulatedClock(2))
    operation.act(counter)
    after = view(undisturbed, operation.ring)
    assert len(counter.calls) >= operation.least_calls
    for call in counter.calls[:: 1 if DAILY else THINNED.get(kind, 1)]:
        inner = store_of(operation.begin)
        where = f"{operation.name}: {kind.name} at call {call.index}, {call.verb} {call.key}"
        finished = _disturb(operation, inner, call.index, kind)
        now = view(inner, operation.ring)
        _check_view(now, before, after, where)
        if finished:
            assert now.latest == after.latest, where
            assert now.savepoints == after.savepoints, where
        _check_sound(inner, operation.ring, where)
        if operation.repeatable:
            operation.act(inner)
            assert _newest(view(inner, operation.ring)) == _newest(after), where
        _check_next_commit(inner, operation.ring, where)


def _disturb(operation: Operation, inner: MemoryStore, index: int, kind: FaultKind) -> bool:
    """Run with one fault; whether it came to its end all the same. Only our errors may leave it."""
    try:
        operation.act(FaultyStore(inner, fault_at(index, kind), clock=SimulatedClock(2)))
    except (SimulatedCrash, CheckpointError):
        return False
    return True


def _newest(seen: View) -> object:
    return None if seen.latest is None else seen.checkpoints[seen.latest]


def _check_view(now: View, before: View, after: View, where: str) -> None:
    """Every checkpoint is whole and one of the two states; none that both have is lost."""
    for number, content in now.checkpoints.items():
        known = [seen.checkpoints[number] for seen in (before, after) if number in seen.checkpoints]
        assert content in known, f"{where}: checkpoint {number} is a mix"
    assert set(now.checkpoints) >= set(before.checkpoints) & set(after.checkpoints), where
    assert now.latest in (before.latest, after.latest), where
    assert now.savepoints in (before.savepoints, after.savepoints), where


def _check_sound(store: MemoryStore, ring: KeyRing | None, where: str) -> None:
    assert [str(found) for found in verify_store(store, max_concurrent_reads=1)] == [], where
    history = open_history(store, 51, ring=ring)
    latest = history.load_latest()
    report = recover_latest_validated(store, SimulatedClock(51), max_concurrent_reads=1)
    assert report.skipped == (), where
    assert report.chosen_id == (None if latest is None else latest.checkpoint_id), where


def _check_next_commit(store: MemoryStore, ring: KeyRing | None, where: str) -> None:
    """A new start takes over, commits, prunes and tidies up, and nothing of it is missing."""
    earlier = view(store, ring)
    history = open_history(store, 52, ring=ring)
    epoch = 1 if earlier.latest is None else earlier.checkpoints[earlier.latest].epoch + 1
    saved = save_epoch(history, epoch, "next")
    now = view(store, ring)
    assert now.latest == saved.checkpoint_id, where
    assert all(now.checkpoints[number] == content for number, content in earlier.checkpoints.items()), where
    history.prune(1)
    history.cleanup_orphans(grace_ms=-DAY_MS)
    _check_sound(store, ring, where)
    needed = frozenset[str]().union(
        *(manifest.paths() for number in history.list_ids() if (manifest := history.load_by_id(number)))
    )
    assert {info.key for info in store.list("checkpoints/")} == needed, where


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.lower())
def test_a_copy_is_never_more_than_its_source_and_can_be_finished(kind: FaultKind, side: str) -> None:
    """What is visible at the target is whole at every moment; running the copy again completes it."""
    whole = view(store_of(PLAIN))
    source, target = FaultyStore(store_of(PLAIN)), FaultyStore(MemoryStore())
    copy_store(source, target, concurrency=1, clock=SimulatedClock(2))
    assert view(target.inner) == whole
    counted = source if side == "source" else target
    assert len(counted.calls) > 10
    for call in counted.calls[:: 1 if DAILY else 2]:
        where = f"copy: {kind.name} at call {call.index} of the {side}, {call.verb} {call.key}"
        plain, copied = store_of(PLAIN), MemoryStore()
        plan = fault_at(call.index, kind)
        faulty_source = FaultyStore(plain, plan) if side == "source" else plain
        faulty_target = FaultyStore(copied, plan) if side == "target" else copied
        with suppress(SimulatedCrash, CheckpointError):
            copy_store(faulty_source, faulty_target, concurrency=1, clock=SimulatedClock(2))
        seen = view(copied)
        assert all(whole.checkpoints[number] == content for number, content in seen.checkpoints.items()), (
            where
        )
        assert [str(found) for found in verify_store(copied, max_concurrent_reads=1)] == [], where
        copy_store(plain, copied, concurrency=1, clock=SimulatedClock(3))
        assert view(copied) == whole, where
        _check_next_commit(copied, None, where)


def test_after_a_rekey_the_old_master_key_is_not_needed() -> None:
    """The operation above really rewraps: with the new key alone everything can be read."""
    store = store_of(ENCRYPTED)
    _rekey(store)
    assert view(store, NEW_RING) == view(store_of(ENCRYPTED), OLD_RING)
