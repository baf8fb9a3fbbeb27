"""Rule 8 of the commit protocol: savepoints, pruning, orphans and deletions at the same time.

Each test names the function that keeps its rule. Where the damage can be shown, the rule is taken out
inside the test, and the damage is there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_checkpoint.errors import (
    FormatError,
    RefusedError,
)
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    CheckpointId,
    CheckpointPaths,
    manifest_key,
    parse_given_up_key,
)
from pyspark_checkpoint.format.manifest import OperatorSnapshotEntry, PartitionSnapshotEntry
from pyspark_checkpoint.format.settled import ListRef, SettledList, SettledPart, build_list
from pyspark_checkpoint.history import live_set, rollback
from pyspark_checkpoint.history import retention as retain
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.deletion import Removal, delete_checkpoint
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.orphans import OrphanPlan, execute_orphans, give_up, scan_orphans
from pyspark_checkpoint.history.savepoint import add_savepoint, remove_savepoint
from pyspark_checkpoint.history.settle import paths_below
from pyspark_checkpoint.history.staging import put_artifact
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind, StoreCall
from tests.contract.races import Patch, once, quiet_prune
from tests.support.history_kit import OPERATOR, History, commit, draft_of, history_of, stage_one

# --- rule 8 --------------------------------------------------------------------------------------


def test_rule_8_a_pruned_number_cannot_be_pinned(monkeypatch: Patch) -> None:
    """``control.may_pin``: a pin on something half deleted would promise what is not there."""
    history, _ = history_of(5)
    history.prune(2)
    with pytest.raises(RefusedError, match="pruned"):
        add_savepoint(history.inner, "late", history.clock, number=2)


def test_rule_8_a_savepoint_and_a_prune_at_the_same_time_leave_one_truth() -> None:
    """The pin is swapped into the record that has the floor, so that one of the two goes second."""
    history, _ = history_of(5)
    done = once(history, "put", CONTROL_KEY, lambda: quiet_prune(history))
    with pytest.raises(RefusedError, match="pruned"):
        add_savepoint(history.store, "sp", history.clock, number=2)
    assert done
    assert history.control().pins == {}


def test_rule_8_a_second_name_keeps_what_the_first_kept() -> None:
    """Below the floor a pinned number may be pinned again, and stays when the first name goes."""
    history, _ = history_of(5)
    add_savepoint(history.inner, "one", history.clock, number=2)
    history.prune(1)
    add_savepoint(history.inner, "two", history.clock, number=2)
    assert remove_savepoint(history.inner, "one", history.clock).checkpoint_ids == ()
    found = find_checkpoint(history.inner, 2)
    assert found is not None
    assert not history.missing(found.manifest)
    assert remove_savepoint(history.inner, "two", history.clock).checkpoint_ids == (2,)
    assert find_checkpoint(history.inner, 2) is None


def test_rule_8_a_rollback_pins_its_target_first(monkeypatch: Patch) -> None:
    """``rollback.pin_target``: without it a prune takes the target while the new manifest is on its way."""

    def race() -> tuple[History, set[str]]:
        history, _ = history_of(5, depth=0)
        once(history, "put", manifest_key(6), lambda: quiet_prune(history))
        made = rollback.rollback(history.store, 2, clock=history.clock)
        return history, history.missing(made)

    history, missing = race()
    assert missing == set()
    assert (history.head().rollback_of, history.head().epoch) == (2, 1)
    assert history.control().pins == {}
    monkeypatch.setattr(rollback, "pin_target", lambda *args: None)
    assert race()[1]


def test_rule_8_the_live_set_is_read_after_the_floor_is_raised(monkeypatch: Patch) -> None:
    """``retain.settle_live_set`` comes after ``retain.raise_floor``: else a rollback is missed."""

    def race(living_first: bool) -> set[str]:
        history, _ = history_of(5, depth=0)

        def roll_back() -> None:
            rollback.rollback(history.inner, 2, clock=history.clock)

        real = live_set.settle_live_set
        if living_first:
            early = real(history.inner, history.control())
            assert early is not None
            keep_late = replace(
                early, manifests={n: m for n, m in early.manifests.items() if n >= 5}, paths=frozenset()
            )
            roll_back()
            monkeypatch.setattr(retain, "settle_live_set", lambda *args, **kw: keep_late)
        else:
            once(history, "put", CONTROL_KEY, roll_back)
        history.prune(1)
        monkeypatch.setattr(retain, "settle_live_set", real)
        return history.missing(history.head())

    assert race(living_first=False) == set()
    assert race(living_first=True)


def test_rule_8_a_pruner_whose_floor_was_raised_by_another_stops(monkeypatch: Patch) -> None:
    """``live_set.floor_is_ours``: what it took for live may be half deleted by the faster one."""
    history, _ = history_of(6)

    def faster() -> None:
        quiet_prune(history)

    once(history, "get", manifest_key(5), faster)
    head = find_head(history.inner)
    assert head is not None
    policy = retain.RetentionPolicy(3)
    plan = retain.plan_prune(retain.read_recent(history.inner, head, policy), head.control, policy)
    result = retain.execute_prune(history.store, plan, history.clock)
    assert result.stopped
    assert result.removal.checkpoint_ids == ()
    assert history.control().floor == 6
    assert not history.missing(history.head())


def history_with_lists() -> tuple[History, tuple[ListRef, ...]]:
    """Checkpoints 1 to 4 of an append table; 2 has part 1 in one list, 3 and 4 have it in another one."""
    history = History()
    run = history.run("run-a")
    run.claim()
    attempt = run.attempt()
    part = stage_one(run, attempt, 0, "rows of epoch 0")
    run.publish(draft_of(0, (part,)), attempt)
    lists: list[ListRef] = []
    for epoch in (1, 2, 3):
        attempt = run.attempt()
        ref = stage_one(run, attempt, epoch, f"rows of epoch {epoch}")
        if epoch < 3:
            new = build_list(attempt, SettledList(parts=(SettledPart(epoch - 1, part),)))
            put_artifact(run.store, new.ref.path, new.data, history.clock)
            lists.append(new.ref)
        entry = OperatorSnapshotEntry((PartitionSnapshotEntry(0, (ref,)),), "table", (lists[-1],))
        run.publish(replace(draft_of(epoch, ()), operators={OPERATOR: entry}), attempt)
    return history, tuple(lists)


def prune_to(history: History, keep: int) -> retain.PruneResult:
    """Plan undisturbed, so that whatever comes between comes while it is executed."""
    head = find_head(history.inner)
    assert head is not None
    policy = retain.RetentionPolicy(keep)
    plan = retain.plan_prune(retain.read_recent(history.inner, head, policy), head.control, policy)
    return retain.execute_prune(history.store, plan, history.clock)


@pytest.mark.parametrize("faster", ["prune", "delete"])
def test_rule_8_a_list_that_another_pruner_removed_is_not_damage(faster: str) -> None:
    """``deletion.remove_unnamed``: the control record has changed, so the slower one stops."""
    history, lists = history_with_lists()

    def other() -> None:
        if faster == "prune":
            quiet_prune(history)
        else:
            delete_checkpoint(history.inner, 2, history.clock)

    done = once(history, "get", lists[0].path, other)
    result = prune_to(history, 3)
    assert done
    assert result.stopped
    history.prune(1)
    assert history.control().swept == 4
    assert paths_below(history.inner, [lists[1]]) <= set(history.keys("checkpoints/"))
    assert list(verify_store(history.inner)) == []


def test_rule_8_a_savepoint_is_removed_while_another_pruner_removes_a_list() -> None:
    """The pin is gone; what only it kept is left to the next prune, or to ``cleanup_orphans``."""
    history, lists = history_with_lists()
    add_savepoint(history.inner, "sp", history.clock, number=1)
    prune_to(history, 3)
    done = once(history, "get", lists[0].path, lambda: quiet_prune(history))
    assert remove_savepoint(history.store, "sp", history.clock) == Removal()
    assert done
    assert history.control().pins == {}
    assert list(verify_store(history.inner)) == []


def test_rule_8_a_list_that_nobody_removed_and_is_missing_is_damage() -> None:
    """Nothing is deleted, and ``swept`` stays."""
    history, lists = history_with_lists()
    history.inner.delete([lists[0].path])
    with pytest.raises(FormatError, match="missing"):
        prune_to(history, 3)
    assert history.control().swept == 1


@pytest.mark.parametrize("damage", ["missing", "unreadable"])
def test_rule_8_a_live_manifest_that_cannot_be_read_stops_every_delete(damage: str) -> None:
    """``live_set.read_live_set``: what it names is not known, so nothing may go."""
    history, _ = history_of(6)
    add_savepoint(history.inner, "sp", history.clock, number=2)
    if damage == "missing":
        history.inner.delete([manifest_key(2)])
    else:
        history.flip(manifest_key(5))
    before = history.keys("checkpoints/")
    with pytest.raises(FormatError):
        history.prune(2)
    assert history.keys("checkpoints/") == before


@pytest.mark.parametrize("verb", ["delete", "put", "get"])
def test_rule_8_a_crashed_prune_is_finished_by_the_next(verb: str) -> None:
    """From ``swept`` to the floor: a crash at any call leaves garbage, never a hole."""
    crashes = 0
    for index in range(60):
        history, _ = history_of(6)
        seen = [0]

        def plan(call: StoreCall, seen: list[int] = seen, index: int = index) -> Fault | None:
            seen[0] += call.verb == verb
            return Fault(FaultKind.CRASH_AFTER) if call.verb == verb and seen[0] == index + 1 else None

        history.plan = plan
        try:
            history.prune(2)
        except Exception as crash:  # noqa: BLE001 - a simulated crash is no error of ours
            assert type(crash).__name__ == "SimulatedCrash"
            crashes += 1
        fresh = History(inner=history.inner, clock=history.clock)
        assert not fresh.missing(fresh.head())
        fresh.prune(2)
        assert fresh.numbers() == [5, 6]
        control = fresh.control()
        assert (control.floor, control.swept) == (5, 5)
        assert set(fresh.keys("checkpoints/")) == set(
            find_checkpoint(fresh.inner, 5).manifest.paths() | fresh.head().paths()  # type: ignore[union-attr]
        )
    assert crashes


def test_rule_8_keep_counts_epochs_and_not_checkpoints() -> None:
    """Three replacements of one epoch are one epoch: fault 5 of the seed system."""
    history, run = history_of(3)
    for text in ("b", "c", "d"):
        commit(run, 2, text)
    history.prune(2)
    assert history.numbers() == [2, 3, 4, 5, 6]


def test_rule_8_an_upload_that_can_still_be_published_is_no_orphan() -> None:
    """``orphans.is_orphan_artifact``: by its number, without a clock; a stall may last for weeks."""
    history, run = history_of(3)
    attempt = run.attempt()
    ref = stage_one(run, attempt, 3, "slow")
    history.clock.sleep(30 * 24 * 3600)
    execute_orphans(history.inner, scan_orphans(history.inner, history.clock))
    made = run.publish(draft_of(3, (ref,)), attempt)
    assert not history.missing(made)


def test_rule_8_an_upload_whose_number_is_taken_is_an_orphan_after_the_grace_period() -> None:
    """And nothing else goes: whatever a live manifest names stays."""
    history, run = history_of(3)
    lost = stage_one(run, run.attempt(), 3, "abandoned")
    commit(run, 3)
    assert scan_orphans(history.inner, history.clock).keys == ()
    assert scan_orphans(history.inner, history.clock).young_count == 1
    history.clock.sleep(25 * 3600)
    plan = scan_orphans(history.inner, history.clock)
    assert plan.keys == (lost.path,)
    execute_orphans(history.inner, plan)
    assert not history.missing(history.head())


def test_rule_8_an_upload_that_its_run_has_given_up_is_an_orphan_before_its_number_is_taken() -> None:
    """``given_up``: only those that the record names, after the grace period, and the record after them."""
    history, run = history_of(3)
    lost, kept = (stage_one(run, run.attempt(), 3, text) for text in ("lost", "kept"))
    assert lost.path is not None
    give_up(history.inner, 4, [lost.path], history.clock)
    assert scan_orphans(history.inner, history.clock).keys == ()
    history.clock.sleep(25 * 3600)
    plan = scan_orphans(history.inner, history.clock)
    assert plan.keys[0] == lost.path and len(plan.keys) == 2
    assert parse_given_up_key(plan.keys[1]) == 4
    execute_orphans(history.inner, plan)
    assert scan_orphans(history.inner, history.clock) == OrphanPlan()
    attempt = run.attempt()
    made = run.publish(draft_of(3, (kept,)), attempt)
    assert not history.missing(made)


def test_rule_8_a_record_of_given_up_objects_cannot_name_live_ones() -> None:
    """``given_up``: of another number, damaged, or of a checkpoint that was committed: nothing goes."""
    history, run = history_of(3)
    alive = history.head().paths()
    staged = stage_one(run, run.attempt(), 3, "slow")
    assert staged.path is not None
    give_up(history.inner, 4, [*alive, staged.path], history.clock)  # names objects of number 3 as well
    torn = CheckpointPaths.given_up(CheckpointId(4, history.clock.uuid7()))
    history.inner.put(torn, b"{}")
    history.clock.sleep(25 * 3600)
    assert scan_orphans(history.inner, history.clock).keys == ()
    give_up(history.inner, 4, [staged.path], history.clock)
    made = run.publish(draft_of(3, (staged,)), run.attempt())  # no run of ours does that
    history.clock.sleep(25 * 3600)
    execute_orphans(history.inner, scan_orphans(history.inner, history.clock))
    assert not history.missing(made)


def test_rule_8_deleting_one_refuses_head_and_pinned_and_leaves_a_tombstone() -> None:
    """``delete.delete_checkpoint``: the number stays taken, the chain stays provable."""
    history, run = history_of(4, depth=0)
    add_savepoint(history.inner, "sp", history.clock, number=1)
    for number, why in ((4, "newest"), (1, "pinned"), (9, "no checkpoint")):
        with pytest.raises(RefusedError, match=why):
            delete_checkpoint(history.inner, number, history.clock)
    gone = find_checkpoint(history.inner, 2)
    assert gone is not None
    delete_checkpoint(history.inner, 2, history.clock)
    assert find_checkpoint(history.inner, 2) is None
    assert history.missing(gone.manifest) == set(gone.manifest.paths())
    assert history.numbers() == [1, 2, 3, 4]
    assert list(CheckpointStore(history.inner).verify()) == []
    with pytest.raises(RefusedError, match="deleted"):
        add_savepoint(history.inner, "no", history.clock, number=2)
    assert commit(run, 4).checkpoint_id == 5
