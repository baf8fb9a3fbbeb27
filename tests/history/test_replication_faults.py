"""Copies of a history: what is refused, found, and survived."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import (
    CheckpointError,
    FencedError,
    FormatError,
    IntegrityError,
    RefusedError,
    Unavailable,
)
from pyspark_checkpoint.format.keys import CHECKPOINTS_PREFIX, LATEST_KEY, manifest_key
from pyspark_checkpoint.history.artifact_reader import ArtifactReader
from pyspark_checkpoint.history.control import read_control
from pyspark_checkpoint.history.deletion import delete_checkpoint
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.savepoint import add_savepoint
from pyspark_checkpoint.history.seal import write_seal
from pyspark_checkpoint.store.local.local_store import LocalStore
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.faulty_store import (
    FaultKind,
    FaultyStore,
    SimulatedCrash,
    fault_at,
    fault_on,
)
from pyspark_checkpoint.testing.manual_clock import ManualClock
from tests.support.made_history import (
    commit_epoch,
    contents,
    copy,
    findings,
    head_number,
    make_history,
    new_run,
    prune,
    shown,
)

CLOCK = ManualClock("copy")


# --- what is refused ------------------------------------------------------------------------------


def test_a_target_with_another_history_is_refused_and_left_alone() -> None:
    """Another query's store, by its id."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 3)
    commit_epoch(new_run(target, "other"), 1)
    before = contents(target)
    with pytest.raises(RefusedError, match="another store"):
        copy(source, target)
    assert contents(target) == before


@pytest.mark.parametrize("behind", [0, 8])
def test_a_target_that_has_diverged_is_refused_and_left_alone(behind: int) -> None:
    """After a failover both sides went on: also when the source has long pruned the fork."""
    source, target = MemoryStore(), MemoryStore()
    run = make_history(source, 3)
    copy(source, target)
    failover = new_run(target, "run-2")
    failover.claim()
    for epoch in range(4, 5 + behind + 4):
        commit_epoch(run, epoch)
    if behind:
        prune(source, 2)
    before = contents(target)
    with pytest.raises(RefusedError, match="target has diverged"):
        copy(source, target)
    assert contents(target) == before


def test_a_target_that_is_ahead_is_refused() -> None:
    """Copying back the wrong way round does nothing."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 3)
    copy(source, target)
    ahead = new_run(target, "run-2")
    ahead.claim()
    before = contents(target)
    with pytest.raises(RefusedError, match="target has diverged"):
        copy(source, target)
    assert contents(target) == before
    copy(target, source)
    assert head_number(source) == 4
    with pytest.raises(FencedError):
        commit_epoch(new_run(source), 5)


def test_a_writer_that_takes_the_next_number_at_the_target_meanwhile_wins() -> None:
    """The copy finds another manifest under its number, publishes nothing, and says so."""
    source, target = MemoryStore(), MemoryStore()
    run = make_history(source, 3)
    copy(source, target)
    commit_epoch(run, 4)

    class Racing(MemoryStore):
        def stream(self, key: str, *, chunk_bytes: int = 0):  # type: ignore[no-untyped-def]
            failover = new_run(target, "run-2")
            failover.claim()
            return source.stream(key)

        def __getattribute__(self, name: str) -> object:
            own = name in ("stream", "url")
            return object.__getattribute__(self, name) if own else getattr(source, name)

    with pytest.raises(RefusedError, match="target has diverged"):
        copy(Racing(), target)
    head = find_head(target)
    assert head is not None
    assert head.manifest.run_id == "run-2"
    assert findings(target) == []


def test_an_empty_source_and_a_copy_onto_itself_are_refused(tmp_path: Path) -> None:
    """Nothing is created at the target."""
    target = MemoryStore()
    with pytest.raises(RefusedError, match="no checkpoint to copy"):
        copy(MemoryStore(), target)
    assert contents(target) == {}
    make_history(LocalStore(tmp_path), 1)
    with pytest.raises(RefusedError, match="same store"):
        copy(LocalStore(tmp_path), LocalStore(tmp_path))


# --- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 20, -1, -20])
def test_a_damaged_artifact_is_found_and_no_manifest_is_published(at: int) -> None:
    """Header, part, index and footer of a pack alike; the target shows no checkpoint."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 2)
    key = next(info.key for info in source.list(CHECKPOINTS_PREFIX))
    damaged = bytearray(source.get(key))
    damaged[at] ^= 1
    source.put(key, bytes(damaged))
    with pytest.raises(FormatError):
        copy(source, target)
    assert not [key for key in contents(target) if key.startswith("manifests/")]
    assert key not in contents(target)


def test_a_missing_or_short_artifact_is_found() -> None:
    """The error names it."""
    source = MemoryStore()
    make_history(source, 2)
    key = next(info.key for info in source.list(CHECKPOINTS_PREFIX))
    data = source.get(key)
    source.put(key, data[:100])
    with pytest.raises(FormatError, match="fewer than"):
        copy(source, MemoryStore())
    source.delete([key])
    with pytest.raises(FormatError, match="the source lacks"):
        copy(source, MemoryStore())


def test_a_manifest_that_does_not_follow_its_parent_is_found() -> None:
    """A broken chain is not copied."""
    source, other = MemoryStore(), MemoryStore()
    make_history(source, 3)
    commit_epoch(new_run(other, "x"), 1)
    commit_epoch(new_run(other, "x"), 2)
    source.put(manifest_key(2), other.get(manifest_key(2)))
    with pytest.raises(FormatError, match="does not follow"):
        copy(source, MemoryStore())


def test_a_foreign_object_at_the_target_is_not_taken_for_ours() -> None:
    """Another size under our name is refused, not overwritten."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 2)
    copy(source, target, numbers=[1])
    known = {info.key for info in target.list(CHECKPOINTS_PREFIX)}
    key = next(info.key for info in source.list(CHECKPOINTS_PREFIX) if info.key not in known)
    target.put(key, b"foreign")
    with pytest.raises(RefusedError, match="another object"):
        copy(source, target)
    assert target.get(key) == b"foreign"


# --- the source moves, answers are lost, the process dies ------------------------------------------


def test_a_source_that_is_pruned_meanwhile_is_planned_again() -> None:
    """An object that vanished because its checkpoint was pruned is no damage."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 6)
    pruned: list[int] = []

    def plan(call: object) -> None:
        if getattr(call, "verb", "") == "stream" and not pruned:
            pruned.append(1)
            prune(source, 2)

    copy(FaultyStore(source, plan), target)
    assert pruned
    assert sorted(shown(target)) == [5, 6]
    assert findings(target) == []


@pytest.mark.parametrize("kind", [FaultKind.LOST_RESPONSE, FaultKind.LOST_REQUEST])
@pytest.mark.parametrize("key", ["_control", ".pack", "manifests/", LATEST_KEY])
def test_a_lost_answer_of_the_target_is_repeated(kind: FaultKind, key: str) -> None:
    """Whether it landed or not, the result is the same."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 2)
    copy(source, FaultyStore(target, fault_on("put", key, kind)))
    assert shown(target) == shown(source)
    assert findings(target) == []


def test_an_unavailable_source_is_asked_again_and_then_given_up() -> None:
    """A stream that breaks is begun anew; a source that stays away is an error."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 2)
    copy(FaultyStore(source, fault_on("stream", ".pack", FaultKind.UNAVAILABLE, times=3)), target)
    assert findings(target) == []
    with pytest.raises(Unavailable):
        gone = FaultyStore(source, fault_on("stream", ".pack", FaultKind.UNAVAILABLE, times=99))
        copy(gone, MemoryStore())


def scenario_fresh() -> tuple[MemoryStore, MemoryStore]:
    source = MemoryStore()
    run = make_history(source, 2)
    add_savepoint(source, "old", CLOCK)
    commit_epoch(run, 3)
    commit_epoch(run, 4)
    prune(source, 2)
    head = run.head
    assert head is not None
    write_seal(source, head.manifest, {"commits/4": b"v1"}, CLOCK, check=lambda m, f: None)
    return source, MemoryStore()


def scenario_incremental() -> tuple[MemoryStore, MemoryStore]:
    source, target = MemoryStore(), MemoryStore()
    run = make_history(source, 2)
    copy(source, target)
    commit_epoch(run, 3)
    commit_epoch(run, 4)
    add_savepoint(source, "three", CLOCK, number=3)
    delete_checkpoint(source, 1, CLOCK)
    return source, target


def scenario_rebase() -> tuple[MemoryStore, MemoryStore]:
    source, target = MemoryStore(), MemoryStore()
    run = make_history(source, 3)
    copy(source, target)
    add_savepoint(source, "two", CLOCK, number=2)
    for epoch in range(4, 9):
        commit_epoch(run, epoch)
    prune(source, 2)
    return source, target


def scenario_deleted() -> tuple[MemoryStore, MemoryStore]:
    """A copy that stops after a tombstone: the newest manifest of the target is a deleted one."""
    source = MemoryStore()
    run = make_history(source, 4)
    delete_checkpoint(source, 2, CLOCK)
    delete_checkpoint(source, 3, CLOCK)
    commit_epoch(run, 5)
    return source, MemoryStore()


@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
@pytest.mark.parametrize(
    "scenario", [scenario_fresh, scenario_incremental, scenario_rebase, scenario_deleted]
)
def test_a_crash_at_any_call_leaves_the_old_or_a_newer_whole_history(
    scenario: Callable[[], tuple[MemoryStore, MemoryStore]], kind: FaultKind
) -> None:
    """Every checkpoint that the target shows is whole and is the source's; the next copy finishes."""
    source, target = scenario()
    counting = FaultyStore(target)
    copy(source, counting)
    wanted = shown(target)
    assert len(counting.calls) > 10
    crashes = 0
    for index in range(len(counting.calls)):
        source, target = scenario()
        before = shown(target) if contents(target) else {}
        dying = FaultyStore(target, fault_at(index, kind))
        with contextlib.suppress(SimulatedCrash):
            copy(source, dying)
        crashes += dying.crashed
        check_between(source, target, before)
        copy(source, target)
        assert shown(target) == wanted
        assert findings(target) == []
        last = head_number(target)
        failover = new_run(target, "run-2")
        failover.claim()
        assert head_number(target) == last + 1
    assert crashes > 10


def check_between(source: MemoryStore, target: MemoryStore, before: dict[int, bytes]) -> None:
    """What a reader of a half-finished copy may see: nothing, an error, or whole checkpoints."""
    try:
        head = find_head(target)
    except CheckpointError:
        return
    if head is None:
        return
    at_source = contents(source)
    assert {*before} & {*shown(source)} <= {*shown(target)}
    for number, data in shown(target).items():
        original = at_source.get(manifest_key(number))
        deleted = number in read_control(source).control.deleted
        assert original is None or deleted or original == data
    broken = [f for f in findings(target) if "artifact" in repr(f) or "missing" in repr(f)]
    assert broken == []
    reader = ArtifactReader(target)
    for partition in range(3):
        reader.read_partition(head.manifest, "agg", partition)


def test_a_wrong_byte_has_path_expected_and_actual() -> None:
    """As everywhere."""
    source = MemoryStore()
    commit_epoch(new_run(source), 1, large_bytes=5_000_000)
    key = next(info.key for info in source.list(CHECKPOINTS_PREFIX) if "big" in info.key)
    data = bytearray(source.get(key))
    data[77] ^= 1
    source.put(key, bytes(data))
    with pytest.raises(IntegrityError) as caught:
        copy(source, MemoryStore())
    assert caught.value.path == f"{key}@0"
