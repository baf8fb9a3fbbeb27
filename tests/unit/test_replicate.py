"""Copies of a history: what holds at the target, whatever happens on the way."""

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
from pyspark_checkpoint.format.master_keys import make_key_ring
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.history.cipher import StoreCipher
from pyspark_checkpoint.history.control import ensure_control, read_control
from pyspark_checkpoint.history.copy_execute import CopyProgress
from pyspark_checkpoint.history.copy_objects import MEMORY_BYTES
from pyspark_checkpoint.history.delete import delete_checkpoint
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.reading import ArtifactReader
from pyspark_checkpoint.history.replicate import copy_store
from pyspark_checkpoint.history.retain import execute_prune, plan_prune, read_recent
from pyspark_checkpoint.history.savepoint import add_savepoint, list_savepoints
from pyspark_checkpoint.history.seal import find_seal, write_seal
from pyspark_checkpoint.history.status import read_status, record_status
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.faults import (
    FaultKind,
    FaultyStore,
    SimulatedCrash,
    fault_at,
    fault_on,
)
from pyspark_checkpoint.store.local import LocalStore
from pyspark_checkpoint.store.memory import MemoryStore
from tests.unit.fixed_clock import FixedClock
from tests.unit.made_history import commit_epoch, content, contents, make_history, new_run

CLOCK = FixedClock("copy")


def copy(source: ObjectStore, target: ObjectStore, **options: object) -> object:
    return copy_store(source, target, clock=FixedClock("copy"), concurrency=1, **options)  # type: ignore[arg-type]


def prune(store: ObjectStore, keep: int) -> None:
    head = find_head(store)
    assert head is not None
    plan = plan_prune(read_recent(store, head, keep=keep), head.control, keep=keep)
    execute_prune(store, plan, FixedClock("prune"))


def findings(store: ObjectStore) -> list[object]:
    return list(verify_store(store))


def head_number(store: ObjectStore) -> int:
    head = find_head(store)
    assert head is not None
    return head.number


def shown(store: ObjectStore) -> dict[int, bytes]:
    """Every checkpoint that a reader of the store sees, by number."""
    control = read_control(store).control
    numbers = {*range(control.floor, head_number(store) + 1), *control.pinned_numbers()}
    found = {number: find_checkpoint(store, number) for number in numbers}
    return {number: loaded.data for number, loaded in found.items() if loaded is not None}


# --- what a copy is ------------------------------------------------------------------------------


def test_a_copy_to_a_directory_is_the_same_history_byte_for_byte(tmp_path: Path) -> None:
    """Manifests, artifacts and pointer are equal; the target verifies and can be read."""
    source, target = MemoryStore(), LocalStore(tmp_path)
    make_history(source, 4)
    copy_store(source, target)
    assert findings(target) == []
    here, there = contents(source), contents(target)
    assert set(here) == set(there)
    assert {key for key in here if here[key] != there[key]} <= {"_control"}
    head = find_head(target)
    assert head is not None
    reader = ArtifactReader(target)
    assert reader.read_partition(head.manifest, "agg", 2)[-1] == content(4, 2)


def test_a_query_goes_on_from_a_copy() -> None:
    """Failover: a new run claims the copy and commits; the source is not touched."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 3)
    copy(source, target)
    before = contents(source)
    failover = new_run(target, "run-2")
    failover.claim()
    commit_epoch(failover, 4)
    assert head_number(target) == 5
    assert findings(target) == []
    assert contents(source) == before


def test_a_second_copy_brings_only_what_is_new() -> None:
    """No artifact that the target's head names is read again, and nothing old is written."""
    source, target = MemoryStore(), MemoryStore()
    run = make_history(source, 3)
    copy(source, target)
    commit_epoch(run, 4)
    reads, writes = FaultyStore(source), FaultyStore(target)
    copy(reads, writes)
    assert head_number(target) == 4
    assert findings(target) == []
    streamed = [call.key for call in reads.calls if call.verb == "stream"]
    assert len(streamed) == 1
    assert "0000000004-" in streamed[0]
    written = [call.key for call in writes.calls if call.verb == "put"]
    assert written == [streamed[0], manifest_key(4), LATEST_KEY]


def test_a_copy_of_what_is_there_already_writes_nothing() -> None:
    """Also when it is repeated for ever."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 3)
    copy(source, target)
    writes = FaultyStore(target)
    plan = copy(source, writes)
    assert [call for call in writes.calls if call.verb == "put"] == []
    assert (plan.manifests, plan.below) == ((), ())  # type: ignore[attr-defined]


def test_a_dry_run_plans_and_writes_nothing() -> None:
    """The plan names the manifests and the objects."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 3)
    plan = copy(source, target, dry_run=True)
    assert plan.manifests == (1, 2, 3)  # type: ignore[attr-defined]
    assert len(plan.objects) == 3  # type: ignore[attr-defined]
    assert contents(target) == {}


def test_progress_counts_up_to_the_whole() -> None:
    """One call an object; bytes and objects end at their totals."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 3)
    seen: list[CopyProgress] = []
    copy_store(source, target, progress=seen.append)
    assert [p.objects_done for p in seen] == [1, 2, 3]
    assert seen[-1].bytes_done == seen[-1].bytes_total > 0
    assert {p.objects_total for p in seen} == {3}


def test_a_large_object_goes_through_a_file_and_arrives_whole() -> None:
    """Memory is bounded: what is over the limit is spooled to disk."""
    source, target = MemoryStore(), MemoryStore()
    commit_epoch(new_run(source), 1, large_bytes=MEMORY_BYTES + 5)
    copy_store(source, target)
    assert findings(target) == []
    assert {k: v for k, v in contents(source).items() if k != "_control"}.items() <= contents(
        target
    ).items()


def test_seals_and_statuses_come_along_also_later() -> None:
    """A head that is sealed after it was copied is sealed at the target by the next copy."""
    source, target = MemoryStore(), MemoryStore()
    run = make_history(source, 2)
    head = run.head
    assert head is not None
    record_status(source, head.manifest, "table", SinkCommitStatus.FAILED, CLOCK)
    copy(source, target)
    assert read_status(target, head.manifest, "table") is SinkCommitStatus.FAILED
    record_status(source, head.manifest, "table", SinkCommitStatus.COMMITTED, CLOCK)
    write_seal(source, head.manifest, {"commits/2": b"v1"}, CLOCK, check=lambda m, f: None)
    copy(source, target)
    assert read_status(target, head.manifest, "table") is SinkCommitStatus.COMMITTED
    assert find_seal(target, head.manifest) is not None
    assert findings(target) == []


def test_an_encrypted_store_is_copied_without_a_key_and_read_with_it() -> None:
    """Bytes stay as they are; the wrapped keys come along; the store id is what they are bound to."""
    source, target = MemoryStore(), MemoryStore()
    ring = make_key_ring({"k": bytes(range(32))}, "k")
    store_id = ensure_control(source, FixedClock("id")).control.store_id
    cipher = StoreCipher(source, store_id, ring, FixedClock("cipher"))
    run = new_run(source, cipher=cipher)
    run.refresh()
    commit_epoch(run, 1)
    commit_epoch(run, 2)
    copy(source, target)
    assert findings(target) == []
    control = read_control(target).control
    assert control.store_id == store_id
    there = StoreCipher(target, control.store_id, ring)
    head = find_head(target, mac=there.mac)
    assert head is not None
    reader = ArtifactReader(target, store_id=control.store_id, cipher=there)
    assert reader.read_partition(head.manifest, "agg", 1)[-1] == content(2, 1)


# --- savepoints, chosen checkpoints, retention ------------------------------------------------------


def test_savepoints_come_along_also_those_below_the_floor() -> None:
    """With what they name, although the source's floor has passed them."""
    source, target = MemoryStore(), MemoryStore()
    run = make_history(source, 2)
    add_savepoint(source, "old", CLOCK)
    for epoch in range(3, 8):
        commit_epoch(run, epoch)
    prune(source, 2)
    add_savepoint(source, "new", CLOCK)
    copy(source, target)
    assert list_savepoints(target) == list_savepoints(source)
    assert sorted(shown(target)) == [2, 6, 7]
    assert findings(target) == []
    assert shown(target) == shown(source)


def test_chosen_checkpoints_are_a_store_of_their_own() -> None:
    """The highest is the head, the others are pinned; nothing else is there."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 6)
    add_savepoint(source, "three", CLOCK, number=3)
    copy(source, target, numbers=[2, 5], savepoint_names=["three"])
    assert sorted(shown(target)) == [2, 3, 5]
    assert {s.name: s.number for s in list_savepoints(target)} == {"three": 3, "copy-0000000002": 2}
    assert findings(target) == []
    run = new_run(target, "run-2")
    run.claim()
    commit_epoch(run, 9)
    assert findings(target) == []


def test_more_checkpoints_can_be_chosen_later() -> None:
    """Earlier ones become pins, later ones continue the history without a gap."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 6)
    copy(source, target, numbers=[3])
    copy(source, target, numbers=[1])
    assert sorted(shown(target)) == [1, 3]
    copy(source, target, numbers=[5])
    assert sorted(shown(target)) == [1, 3, 4, 5]
    copy(source, target)
    assert sorted(shown(target)) == [1, 3, 4, 5, 6]
    assert findings(target) == []


def test_a_chosen_checkpoint_that_is_not_there_is_refused() -> None:
    """By number, by name, and one that was deleted."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 3)
    delete_checkpoint(source, 2, CLOCK)
    for wish in ({"numbers": [9]}, {"numbers": [2]}, {"savepoint_names": ["nope"]}):
        with pytest.raises(RefusedError, match="the source has no"):
            copy(source, target, **wish)
    assert contents(target) == {}


def test_a_deleted_checkpoint_is_copied_as_its_tombstone() -> None:
    """The chain stays whole; readers do not see it there either."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 4)
    delete_checkpoint(source, 2, CLOCK)
    copy(source, target)
    assert sorted(shown(target)) == [1, 3, 4]
    assert findings(target) == []


def test_a_checkpoint_deleted_after_it_was_copied_is_still_the_same_history() -> None:
    """The target ends with what the source has since replaced by a tombstone."""
    source, target = MemoryStore(), MemoryStore()
    run = make_history(source, 3)
    copy(source, target)
    commit_epoch(run, 4)
    delete_checkpoint(source, 3, CLOCK)
    copy(source, target)
    assert sorted(shown(target)) == [1, 2, 3, 4]
    assert findings(target) == []


def test_the_target_keeps_what_the_source_has_pruned() -> None:
    """A copy is also an archive: it has a floor of its own."""
    source, target = MemoryStore(), MemoryStore()
    run = make_history(source, 4)
    copy(source, target)
    commit_epoch(run, 5)
    prune(source, 2)
    copy(source, target)
    assert sorted(shown(target)) == [1, 2, 3, 4, 5]
    assert findings(target) == []


def test_a_target_that_fell_behind_the_sources_floor_begins_anew_without_a_gap() -> None:
    """What it had stays only where it is pinned."""
    source, target = MemoryStore(), MemoryStore()
    run = make_history(source, 3)
    add_savepoint(source, "two", CLOCK, number=2)
    copy(source, target)
    for epoch in range(4, 12):
        commit_epoch(run, epoch)
    prune(source, 2)
    plan = copy(source, target)
    assert plan.rebase  # type: ignore[attr-defined]
    assert sorted(shown(target)) == [2, 10, 11]
    assert findings(target) == []
    prune(target, 5)
    assert findings(target) == []
    assert manifest_key(1) not in contents(target)


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
def test_a_target_that_has_gone_its_own_way_is_refused_and_left_alone(behind: int) -> None:
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
    with pytest.raises(RefusedError, match="gone its own way"):
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
    with pytest.raises(RefusedError, match="gone its own way"):
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

    with pytest.raises(RefusedError, match="gone its own way"):
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
    make_history(source, 1)
    key = next(info.key for info in source.list(CHECKPOINTS_PREFIX))
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

    copy(FaultyStore(source, plan), target)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
@pytest.mark.parametrize("scenario", [scenario_fresh, scenario_incremental, scenario_rebase])
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
