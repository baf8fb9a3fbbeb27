"""Copies of a history: what holds at the target, and which checkpoints come."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint.crypto.keyring import make_key_ring
from pyspark_checkpoint.errors import (
    RefusedError,
)
from pyspark_checkpoint.format.keys import LATEST_KEY, manifest_key
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.history.artifact_reader import ArtifactReader
from pyspark_checkpoint.history.control import ensure_control, read_control
from pyspark_checkpoint.history.deletion import delete_checkpoint
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.replication import MEMORY_BYTES, copy_store
from pyspark_checkpoint.history.savepoint import add_savepoint, list_savepoints
from pyspark_checkpoint.history.seal import find_seal, write_seal
from pyspark_checkpoint.history.sink_status import read_status, record_status
from pyspark_checkpoint.history.store_cipher import StoreCipher
from pyspark_checkpoint.store.local.local_store import LocalStore
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.faulty_store import (
    FaultyStore,
)
from pyspark_checkpoint.testing.manual_clock import ManualClock
from tests.support.made_history import (
    commit_epoch,
    content,
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
    """One call an object; the bytes end at their total."""
    source, target = MemoryStore(), MemoryStore()
    make_history(source, 3)
    seen: list[tuple[int, int]] = []
    copy_store(source, target, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) == 3
    assert seen[-1][0] == seen[-1][1] > seen[0][0]


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
    store_id = ensure_control(source, ManualClock("id")).control.store_id
    cipher = StoreCipher(source, store_id, ring, ManualClock("cipher"))
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
    assert {s.name: s.checkpoint_id for s in list_savepoints(target)} == {"three": 3, "copy-0000000002": 2}
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


def test_a_target_that_fell_behind_the_sources_floor_starts_over_without_a_gap() -> None:
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
