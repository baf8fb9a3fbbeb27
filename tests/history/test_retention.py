"""Retention: the plan is pure, and the execution asserts what it removed."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.errors import RefusedError, Unavailable
from pyspark_checkpoint.format.keys import committed_key, failed_key, seal_key
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.records import Control, Pin, SinkCommitStatus
from pyspark_checkpoint.format.summary import ManifestSummary
from pyspark_checkpoint.history.deletion import mark_deleted
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.retention import RetentionPolicy, execute_prune, plan_prune, read_recent
from pyspark_checkpoint.history.rollback import rollback
from pyspark_checkpoint.history.savepoint import add_savepoint, list_savepoints, pin_checkpoint
from pyspark_checkpoint.history.seal import create_seal
from pyspark_checkpoint.history.sink_status import record_status
from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind, FaultyStore
from tests.support.history_kit import commit, history_of


def summary(number: int, epoch: int, *, kind: ManifestKind = ManifestKind.EPOCH) -> ManifestSummary:
    return ManifestSummary(
        number, epoch, 1000 * number, kind, "", 1, "run", "", "", 0, "", None, (), frozenset()
    )


def history(*epochs: int) -> list[ManifestSummary]:
    return [summary(number, epoch) for number, epoch in enumerate(epochs, 1)]


CONTROL = Control("store")
DENIED = Fault(FaultKind.UNAVAILABLE)


@pytest.mark.parametrize(
    ("epochs", "keep", "floor"),
    [
        ((0, 1, 2, 3), 1, 4),
        ((0, 1, 2, 3), 2, 3),
        ((0, 1, 2, 3), 9, 1),
        ((0, 1, 1, 1), 1, 2),
        ((0, 1, 2, 2, 2), 2, 2),
        ((0, 1, 2, 3, 1, 2), 2, 5),
        ((0, 1, 2, 3, 1, 2), 3, 2),
    ],
)
def test_keep_counts_distinct_epochs_from_the_head_down(
    epochs: tuple[int, ...], keep: int, floor: int
) -> None:
    """Replacements and claims share their epoch; after a rollback epochs come again."""
    assert plan_prune(history(*epochs), CONTROL, RetentionPolicy(keep=keep)).floor == floor


def test_age_keeps_what_is_young_and_always_the_head() -> None:
    """Checkpoint n was made at n seconds."""
    past = history(0, 1, 2, 3)
    assert plan_prune(past, CONTROL, RetentionPolicy(keep_newer_than_ms=3000)).floor == 3
    assert plan_prune(past, CONTROL, RetentionPolicy(keep_newer_than_ms=99_000)).floor == 4
    assert plan_prune(past, CONTROL, RetentionPolicy(keep_newer_than_ms=0)).floor == 1


def test_with_both_limits_a_checkpoint_goes_only_if_both_let_it() -> None:
    """The more careful one wins."""
    past = history(0, 1, 2, 3, 4)
    assert plan_prune(past, CONTROL, RetentionPolicy(keep=2, keep_newer_than_ms=2000)).floor == 2
    assert plan_prune(past, CONTROL, RetentionPolicy(keep=4, keep_newer_than_ms=5000)).floor == 2


def test_the_plan_says_what_goes_and_what_stays() -> None:
    """For ``--dry-run``: numbers, pinned ones apart; nothing is changed by planning."""
    control = Control("store", pins={"sp": Pin(2, "x")})
    plan = plan_prune(history(0, 1, 2, 3, 4), control, RetentionPolicy(keep=2))
    assert (plan.removed, plan.pinned, plan.kept) == ((1, 3), (2,), (4, 5))


def test_the_floor_never_falls_and_nothing_kept_is_refused() -> None:
    """A plan with a larger ``keep`` than the last one's removes nothing."""
    control = Control("store", floor=4)
    assert plan_prune(history(0, 1, 2, 3, 4)[3:], control, RetentionPolicy(keep=99)).floor == 4
    with pytest.raises(RefusedError):
        plan_prune(history(0), CONTROL, RetentionPolicy(keep=0))


def test_deleted_ones_do_not_count_as_kept_epochs() -> None:
    """A tombstone cannot be restored."""
    past = [summary(1, 0), summary(2, 1), summary(3, 2, kind=ManifestKind.TOMBSTONE), summary(4, 3)]
    assert plan_prune(past, CONTROL, RetentionPolicy(keep=2)).floor == 2
    assert (
        plan_prune(history(0, 1, 2, 3), Control("s", deleted=frozenset({3})), RetentionPolicy(keep=2)).floor
        == 2
    )


def test_a_prune_removes_manifests_artifacts_and_side_records_and_nothing_else() -> None:
    """What was removed is asserted object by object: fault 2 of the seed system."""
    history, run = history_of(2)
    for epoch in range(2, 6):
        made = commit(run, epoch, sink_names=("out",))
        create_seal(history.inner, made, {"commits": b"x"}, history.clock)
        record_status(history.inner, made, "out", SinkCommitStatus.FAILED, history.clock)
        history.clock.sleep(1)
        record_status(history.inner, made, "out", SinkCommitStatus.FAILED, history.clock)
        record_status(history.inner, made, "out", SinkCommitStatus.COMMITTED, history.clock)
    before = set(history.keys())
    kept = history.head()
    result = history.prune(1)
    gone = before - set(history.keys())
    assert result.removal.checkpoint_ids == (1, 2, 3, 4, 5)
    assert kept.paths() <= set(history.keys())
    assert {seal_key(5), committed_key(5, "out"), failed_key(5, "out", 0), failed_key(5, "out", 1)} <= gone
    assert {seal_key(6), committed_key(6, "out"), failed_key(6, "out", 1)} <= set(history.keys())
    assert set(history.keys("checkpoints/")) == set(kept.paths())


def test_an_older_retained_checkpoint_keeps_its_base() -> None:
    """Fault 11 of the seed system: what only an older kept one needs stays."""
    history, run = history_of(1)
    commit(run, 1, depth=1)
    commit(run, 2, depth=0)
    history.prune(2)
    older = find_checkpoint(history.inner, 2)
    assert older is not None
    assert len(older.manifest.paths()) == 2
    assert not history.missing(older.manifest)


def test_pruning_after_every_commit_costs_the_same_at_any_length() -> None:
    """With the summaries at hand: no manifest that is kept is read again."""
    history, run = history_of(6)
    cache: dict[int, ManifestSummary] = {}
    costs = []
    for epoch in range(6, 40):
        commit(run, epoch)

        def prune() -> None:
            head = find_head(history.store, cached=run.head)
            assert head is not None
            recent = read_recent(history.store, head, RetentionPolicy(5), cache=cache)
            execute_prune(
                history.store,
                plan_prune(recent, head.control, RetentionPolicy(keep=5)),
                history.clock,
                cache=cache,
            )

        costs.append(len(history.calls(prune)))
    assert len(set(costs[5:])) == 1
    assert costs[-1] <= 16
    assert len(history.numbers()) == 5
    assert set(cache) == set(history.numbers())


def test_what_is_remembered_stays_bounded_where_nothing_may_be_deleted() -> None:
    """The floor rises all the same, and what is below it needs no memory."""
    history, _ = history_of(12)
    cache = {number: summary(number, number) for number in history.numbers()}
    faulty = FaultyStore(history.store, lambda call: DENIED if call.verb == "delete" else None)
    head = find_head(history.store)
    assert head is not None
    recent = read_recent(history.store, head, RetentionPolicy(5))
    with pytest.raises(Unavailable):
        execute_prune(
            faulty, plan_prune(recent, head.control, RetentionPolicy(keep=5)), history.clock, cache=cache
        )
    assert len(cache) == 5


def test_a_prune_finishes_a_deletion_that_crashed() -> None:
    """The number was recorded as deleted, and nothing more."""
    history, _ = history_of(6, depth=0)
    doomed = find_checkpoint(history.inner, 5)
    assert doomed is not None
    mark_deleted(history.inner, 5, history.clock)
    history.prune(3)
    assert history.missing(doomed.manifest) == set(doomed.manifest.paths())
    assert find_checkpoint(history.inner, 5) is None
    assert 5 in history.numbers()


def test_a_pin_that_a_crashed_rollback_left_is_dropped_once_its_number_is_taken() -> None:
    """No clock: as long as the rollback could still succeed, its target stays."""
    history, run = history_of(6, depth=0)
    pin_checkpoint(history.inner, "~rollback-0000000007-dead", 2, history.clock)
    history.prune(1)
    target = find_checkpoint(history.inner, 2)
    assert target is not None
    assert not history.missing(target.manifest)
    assert list_savepoints(history.inner) == []
    commit(run, 6)
    history.prune(1)
    assert history.control().pins == {}
    assert history.numbers() == [7]
    assert history.missing(target.manifest)


def test_a_savepoint_survives_every_prune_byte_for_byte() -> None:
    """And can be rolled back to."""
    history, run = history_of(4)
    add_savepoint(history.inner, "before", history.clock, number=2)
    for epoch in range(4, 12):
        commit(run, epoch)
        history.prune(1)
    made = rollback(history.inner, 2, clock=history.clock)
    assert not history.missing(made)
    assert made.epoch == 1
    heir = history.run("run-z")
    heir.claim()
    assert commit(heir, 2).epoch == 2
