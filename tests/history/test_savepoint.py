"""Savepoints, rollbacks, deletions and orphans, beyond what the protocol's rules ask."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.errors import FencedError, FormatError, OutcomeUnknown, RefusedError
from pyspark_checkpoint.format.keys import CONTROL_KEY, manifest_key
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.history.deletion import delete_checkpoint, mark_deleted
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.orphans import execute_orphans, scan_orphans
from pyspark_checkpoint.history.rollback import rollback
from pyspark_checkpoint.history.savepoint import add_savepoint, list_savepoints, remove_savepoint
from pyspark_checkpoint.history.seal import create_seal, find_seal
from pyspark_checkpoint.history.sink_status import read_status, record_status
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind, fault_on
from tests.support.history_kit import History, commit, history_of, stage_one


def test_savepoints_are_named_listed_and_removed_by_name() -> None:
    """The newest checkpoint by default; repeating one changes nothing."""
    history, run = history_of(3)
    assert add_savepoint(history.inner, "b", history.clock).checkpoint_id == 3
    assert add_savepoint(history.inner, "a", history.clock, number=1).checkpoint_id == 1
    assert add_savepoint(history.inner, "b", history.clock, number=3).checkpoint_id == 3
    assert [point.name for point in list_savepoints(history.inner)] == ["a", "b"]
    commit(run, 3)
    with pytest.raises(RefusedError, match="already pins checkpoint 3"):
        add_savepoint(history.inner, "b", history.clock)
    remove_savepoint(history.inner, "b", history.clock)
    assert [point.name for point in list_savepoints(history.inner)] == ["a"]
    with pytest.raises(RefusedError, match="no savepoint"):
        remove_savepoint(history.inner, "b", history.clock)


@pytest.mark.parametrize("name", ["", "a/b", "..", "~mine", "x" * 121, "tab\t", "\udc80"])
def test_names_that_no_store_could_hold_are_refused(name: str) -> None:
    """Before anything is asked of the store."""
    history, _ = history_of(1)
    with pytest.raises(RefusedError):
        add_savepoint(history.inner, name, history.clock)
    assert history.control().pins == {}


@pytest.mark.parametrize("number", [0, 7, -1])
def test_what_does_not_exist_cannot_be_pinned(number: int) -> None:
    """Neither before the first nor beyond the newest."""
    history, _ = history_of(3)
    with pytest.raises((RefusedError, FormatError)):
        add_savepoint(history.inner, "x", history.clock, number=number)
    with pytest.raises(RefusedError):
        add_savepoint(History().inner, "x", history.clock)


def test_a_damaged_checkpoint_cannot_become_a_savepoint() -> None:
    """Its digest would be pinned as if it were right."""
    history, _ = history_of(3)
    history.flip(manifest_key(2))
    with pytest.raises(FormatError):
        add_savepoint(history.inner, "x", history.clock, number=2)


@pytest.mark.parametrize("kind", [FaultKind.LOST_RESPONSE, FaultKind.LOST_REQUEST])
def test_a_savepoint_whose_answer_was_lost_is_there_once(kind: FaultKind) -> None:
    """Settled by looking."""
    history, _ = history_of(3)
    history.plan = fault_on("put", CONTROL_KEY, kind)
    add_savepoint(history.store, "sp", history.clock)
    assert history.control().counter == 1


def test_removing_a_savepoint_deletes_only_what_it_alone_kept() -> None:
    """What a live checkpoint names too stays."""
    history, _ = history_of(6, depth=1)
    for name, number in (("two", 2), ("three", 3)):
        add_savepoint(history.inner, name, history.clock, number=number)
    history.prune(1)
    shared = find_checkpoint(history.inner, 3)
    assert shared is not None
    removal = remove_savepoint(history.inner, "two", history.clock)
    assert removal.checkpoint_ids == (2,)
    assert not history.missing(shared.manifest)
    assert list(verify_store(history.inner)) == []


def test_a_rollback_is_a_run_of_its_own() -> None:
    """Whoever was writing is fenced; a new start goes on from the old content, with lower epochs again."""
    history, run = history_of(5)
    target = find_checkpoint(history.inner, 3)
    assert target is not None
    made = rollback(history.inner, 3, clock=history.clock, instance_id="admin")
    assert (made.kind, made.rollback_of, made.epoch) == (ManifestKind.ROLLBACK, 3, 2)
    assert made.operators == target.manifest.operators
    assert made.generation == 2
    with pytest.raises(FencedError, match="admin"):
        commit(run, 5)
    heir = history.run("run-b")
    heir.claim()
    assert commit(heir, 3, "a new lineage").epoch == 3
    assert list(verify_store(history.inner)) == []


def test_a_rollback_carries_the_targets_seal_and_commits() -> None:
    """Otherwise the restored epoch would be run again for nothing."""
    history, run = history_of(1)
    made = commit(run, 1, sink_names=("out",))
    create_seal(history.inner, made, {"commits/1": b"v1"}, history.clock)
    record_status(history.inner, made, "out", SinkCommitStatus.COMMITTED, history.clock)
    commit(run, 2, sink_names=("out",))
    back = rollback(history.inner, 2, clock=history.clock)
    seal = find_seal(history.inner, back)
    assert seal is not None
    assert dict(seal.files) == {"commits/1": b"v1"}
    assert read_status(history.inner, back, "out") is SinkCommitStatus.COMMITTED


def test_a_rollback_repairs_a_history_with_a_damaged_head() -> None:
    """Number and digest of the head are known, its generation is bounded; the history goes on."""
    history, _ = history_of(4)
    history.flip(manifest_key(4))
    with pytest.raises(FormatError):
        history.run("run-b").claim()
    made = rollback(history.inner, 3, clock=history.clock)
    assert (made.checkpoint_id, made.generation) == (5, 3)
    heir = history.run("run-b")
    heir.claim()
    commit(heir, 3)
    assert {finding.checkpoint_id for finding in verify_store(history.inner)} == {4}
    history.prune(1)
    assert list(verify_store(history.inner)) == []


def test_a_rollback_whose_outcome_is_unknown_leaves_its_pin() -> None:
    """The manifest may still land, and names what the pin protects."""
    history, run = history_of(4, depth=0)
    history.plan = fault_on("put", manifest_key(5), FaultKind.LOST_REQUEST, times=10_000)
    with pytest.raises(OutcomeUnknown):
        rollback(history.store, 2, clock=history.clock)
    assert [pin.number for pin in history.control().pins.values()] == [2]
    history.plan = lambda call: None
    history.prune(1)
    target = find_checkpoint(history.inner, 2)
    assert target is not None
    assert not history.missing(target.manifest)
    assert commit(run, 4).checkpoint_id == 5


def test_a_refused_rollback_leaves_no_pin() -> None:
    """A target that is damaged, pruned, deleted, or was never there."""
    history, _ = history_of(6)
    history.prune(3)
    mark_deleted(history.inner, 5, history.clock)
    for target in (2, 5, 99):
        with pytest.raises(RefusedError):
            rollback(history.inner, target, clock=history.clock)
    history.flip(manifest_key(4))
    with pytest.raises(FormatError):
        rollback(history.inner, 4, clock=history.clock)
    assert history.control().pins == {}


def test_deleting_spares_what_others_name_and_can_be_repeated_after_a_crash() -> None:
    """A crash at every call: deleted for readers, finished by the next try, the chain provable."""
    for index in range(40):
        history, _ = history_of(4, depth=1)
        last = len(history.store.calls) + index
        history.plan = lambda call, last=last: (  # type: ignore[misc]
            Fault(FaultKind.CRASH_AFTER) if call.index == last else None
        )
        try:
            delete_checkpoint(history.store, 2, history.clock)
            crashed = False
        except Exception as crash:  # noqa: BLE001 - a simulated crash is no error of ours
            assert type(crash).__name__ == "SimulatedCrash"
            crashed = True
        delete_checkpoint(history.inner, 2, history.clock)
        assert find_checkpoint(history.inner, 2) is None
        for number in (1, 3, 4):
            found = find_checkpoint(history.inner, number)
            assert found is not None
            assert not history.missing(found.manifest)
        assert list(verify_store(history.inner)) == []
        if not crashed:
            return
    raise AssertionError("the operation has more calls than were tried")


def test_orphans_below_the_floor_go_with_their_records() -> None:
    """The late manifest of a writer that was pruned away, and what a crashed removal left."""
    history, stalled = history_of(2)
    attempt = stalled.attempt()
    stage_one(stalled, attempt, 2, "never named")
    heir = history.run("run-b")
    heir.claim()
    for epoch in (2, 3):
        commit(heir, epoch)
    history.prune(1)
    history.inner.put(manifest_key(1), b"late")
    history.inner.put("manifests/manifest-0000000001.seal.json", b"late")
    history.inner.put("manifests/manifest-0000000001.out.committed.json", b"late")
    history.inner.put("_probe/left", b"x")
    history.clock.sleep(25 * 3600)
    plan = scan_orphans(history.inner, history.clock)
    assert len(plan.keys) == 5
    assert execute_orphans(history.inner, plan) == 5
    assert list(verify_store(history.inner)) == []
    assert set(history.keys("checkpoints/")) == set(history.head().paths())


def test_a_new_or_empty_store_has_no_orphans() -> None:
    """Also while its first commit is being staged."""
    history = History()
    assert scan_orphans(history.inner, history.clock).keys == ()
    run = history.run("run-a")
    stage_one(run, run.attempt(), 0, "first")
    history.clock.sleep(99 * 3600)
    assert scan_orphans(history.inner, history.clock).keys == ()
