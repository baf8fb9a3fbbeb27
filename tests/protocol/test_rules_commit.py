"""Rules 1 to 5 of the commit protocol: what a commit is, who has a number, and what a lost answer means.

Each test names the function that keeps its rule. Where the damage can be shown, the rule is taken out
inside the test, and the damage is there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_checkpoint.errors import (
    FencedError,
    OutcomeUnknown,
    RefusedError,
    StaleAttempt,
)
from pyspark_checkpoint.format.keys import CONTROL_KEY, LATEST_KEY, CheckpointId, manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.records import Control, encode_latest
from pyspark_checkpoint.history import head as head_module
from pyspark_checkpoint.history import lookup, publish, rules
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.savepoint import add_savepoint
from pyspark_checkpoint.store.base import ObjectStore, Version
from pyspark_checkpoint.testing.faulty_store import FaultKind, FaultyStore, fault_on
from tests.contract.races import Patch, lost_for_good, once, quiet_prune
from tests.protocol.simulation.broken import publish_or_delete
from tests.support.history_kit import History, commit, draft_of, history_of, stage_one

# --- rule 1 --------------------------------------------------------------------------------------


def test_rule_1_a_manifest_names_only_what_cannot_be_deleted_under_it(monkeypatch: Patch) -> None:
    """``rules.check_names``: without it a manifest may name what a prune has deleted."""
    history, run = history_of(4)
    pruned = find_checkpoint(history.inner, 1)
    assert pruned is not None
    old = next(pruned.manifest.artifacts())
    history.prune(1)
    attempt = run.attempt()
    draft = draft_of(4, (old,))
    with pytest.raises(RefusedError, match="may not name"):
        run.publish(draft, attempt)
    monkeypatch.setattr(rules, "check_names", lambda *args: None)
    broken = run.publish(draft, attempt)
    assert history.missing(broken)


def test_rule_1_what_the_parent_names_and_what_was_staged_for_the_number_may_be_named() -> None:
    """Also by another task's attempt at the same number: executors stage under ids of their own."""
    history, run = history_of(2)
    attempt = run.attempt()
    other = replace(attempt, uuid=history.clock.uuid7())
    mine, theirs = stage_one(run, attempt, 2, "mine"), stage_one(run, other, 2, "theirs")
    parents = run.head.manifest.operators["agg"].partitions[0].artifacts  # type: ignore[union-attr]
    made = run.publish(draft_of(2, (*parents, mine, theirs)), attempt)
    assert not history.missing(made)


# --- rule 2 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", [None, b"", b"{}", encode_latest(2), encode_latest(999_999)])
def test_rule_2_the_pointer_is_only_a_hint(hint: bytes | None) -> None:
    """Missing, torn, stale, too high: ``head.locate_head`` finds the head all the same, without a LIST."""
    history, _ = history_of(9)
    if hint is None:
        history.inner.delete([LATEST_KEY])
    else:
        history.inner.put(LATEST_KEY, hint)
    calls = history.calls(lambda: find_head(history.store))
    assert history.head().checkpoint_id == 9
    assert all(verb != "list" for verb, _ in calls)


def test_rule_2_a_reader_reads_the_control_record_after_the_manifests(monkeypatch: Patch) -> None:
    """``head.floor_allows``: without it a stale pointer at an old savepoint passes for the head."""
    history, _ = history_of(8)
    add_savepoint(history.inner, "sp", history.clock, number=3)
    history.prune(2)
    history.inner.put(LATEST_KEY, encode_latest(3))
    assert history.head().checkpoint_id == 8
    monkeypatch.setattr(head_module, "floor_allows", lambda control, number: True)
    assert history.head().checkpoint_id == 3


def test_rule_2_a_prune_between_two_probes_of_a_reader_does_not_fool_it(monkeypatch: Patch) -> None:
    """The reader has seen 2, a pruner takes 2 to 5, then 3 is absent: 2 was not the head."""

    def race() -> tuple[int, list[str]]:
        history, _ = history_of(6)
        history.inner.put(LATEST_KEY, encode_latest(2))
        done = once(history, "head", manifest_key(3), lambda: quiet_prune(history))
        found = find_head(history.store)
        assert found is not None
        return found.number, done

    number, done = race()
    assert done
    assert number == 6
    monkeypatch.setattr(head_module, "floor_allows", lambda control, number: True)
    assert race()[0] == 2


def test_rule_2_below_the_floor_only_a_pinned_digest_exists_for_readers(monkeypatch: Patch) -> None:
    """``lookup.is_visible``: without it a late write of a stalled writer is read as a checkpoint."""
    history, stalled = history_of(3)
    attempt = stalled.attempt()
    ref = stage_one(stalled, attempt, 3, "stalled")
    heir = history.run("run-b")
    heir.claim()
    commit(heir, 3)
    commit(heir, 4)
    history.prune(1)
    with pytest.raises(FencedError):
        stalled.publish(draft_of(3, (ref,)), attempt)
    assert 4 in history.numbers()
    assert find_checkpoint(history.inner, 4) is None
    assert 4 not in CheckpointStore(history.inner).list_ids()
    monkeypatch.setattr(lookup, "is_visible", lambda *args: True)
    assert find_checkpoint(history.inner, 4) is not None


def test_rule_2_pinned_ones_below_the_floor_are_listed_and_loaded() -> None:
    """By id, by epoch and in listings alike."""
    history, _ = history_of(6)
    add_savepoint(history.inner, "sp", history.clock, number=2)
    history.prune(1)
    store = CheckpointStore(history.inner)
    assert store.list_ids() == [2, 6]
    assert store.list() == [(2, 1), (6, 5)]
    assert lookup.find_number_by_epoch(history.inner, 1) == 2
    assert lookup.find_number_by_savepoint(history.inner, "sp") == 2
    found = store.load_by_id(2)
    assert found is not None
    assert not history.missing(found)
    assert store.load_by_id(3) is None


# --- rule 3 --------------------------------------------------------------------------------------


def test_rule_3_a_taken_number_with_our_nonce_is_ours() -> None:
    """``publish.settle_taken``: the answer was lost, the create repeated: "exists", and it is ours."""
    history, run = history_of(1)
    history.plan = fault_on("put", manifest_key(2), FaultKind.LOST_RESPONSE)
    made = commit(run, 1)
    assert history.head().commit_nonce == made.commit_nonce
    assert commit(run, 2).checkpoint_id == 3


def test_rule_3_a_run_that_loses_a_number_to_another_is_fenced(monkeypatch: Patch) -> None:
    """``publish.refuse_loser``: without it two runs go on in turns on one store."""
    history, first = history_of(2)
    second = history.run("run-b")
    second.claim()
    with pytest.raises(FencedError, match="run-b") as caught:
        commit(first, 2)
    error = caught.value
    assert (error.run_id, error.generation, error.query_name) == ("run-b", 2, "orders")

    def carry_on(number: int, found: object) -> None:
        raise StaleAttempt("plan again")

    monkeypatch.setattr(publish, "refuse_loser", carry_on)
    monkeypatch.setattr(Run, "_check_takeover", lambda self, head: None)
    history, first = history_of(2)
    second = history.run("run-b")
    second.claim()
    with pytest.raises(StaleAttempt):
        commit(first, 2)
    assert commit(first, 2).generation == 3
    assert history.head().run_id == "run-a"


def test_rule_3_equal_content_proves_nothing() -> None:
    """Two runs publish the same bytes of state: one has lost, although nothing differs but the nonce."""
    history = History()
    runs = [history.run("run-a"), history.run("run-b")]
    attempts = [run.attempt() for run in runs]
    refs = [stage_one(run, at, 0, "same") for run, at in zip(runs, attempts, strict=True)]
    runs[0].publish(draft_of(0, (refs[0],)), attempts[0])
    with pytest.raises(StaleAttempt, match="run run-a has committed checkpoint 1 meanwhile"):
        runs[1].publish(draft_of(0, (refs[1],)), attempts[1])
    assert history.head().run_id == "run-a"


def test_rule_3_absent_on_read_back_means_pruned_and_fenced() -> None:
    """The number was taken when we asked and is gone when we look: nobody but a pruner does that."""
    history, stalled = history_of(2)
    heir = history.run("run-b")
    heir.claim()
    for epoch in (2, 3):
        commit(heir, epoch)
    done = once(history, "get", manifest_key(3), lambda: quiet_prune(history))
    with pytest.raises(FencedError, match="run-b"):
        commit(stalled, 2)
    assert done


def test_rule_3_an_earlier_attempt_of_our_own_run_is_the_head_and_is_planned_upon() -> None:
    """``StaleAttempt``: the attempt that nobody had heard of is there; the next plan stands on it."""
    history, run = history_of(1)
    history.plan = lost_for_good(manifest_key(2))
    impatient = history.run("run-a", settle_seconds=1.0)
    with pytest.raises(OutcomeUnknown):
        commit(impatient, 1, "first try")
    history.plan = lambda call: None
    with pytest.raises(StaleAttempt):
        commit(impatient, 1, "second try")
    assert impatient.head is not None
    assert impatient.head.number == 2
    made = commit(impatient, 1, "second try")
    assert (made.checkpoint_id, made.kind) == (3, ManifestKind.REPLACEMENT)
    assert run.run_id == made.run_id


# --- rule 4 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FaultKind.LOST_RESPONSE, FaultKind.LOST_REQUEST])
def test_rule_4_a_lost_answer_is_asked_for_again_with_the_same_bytes_and_nonce(kind: FaultKind) -> None:
    """``publish.create_manifest``: whether it landed or not, it is committed once."""
    history, run = history_of(1)
    sent: list[bytes] = []
    real_put = history.inner.put

    def put(key: str, data: bytes, **conditions: object) -> Version:
        if key == manifest_key(2):
            sent.append(data)
        return real_put(key, data, **conditions)  # type: ignore[arg-type]

    history.inner.put = put  # type: ignore[method-assign,assignment]
    history.plan = fault_on("put", manifest_key(2), kind, times=3)
    made = commit(run, 1)
    assert len(set(sent)) == 1
    assert history.numbers() == [1, 2]
    assert history.head() == made


def test_rule_4_a_run_never_deletes_what_it_staged(monkeypatch: Patch) -> None:
    """``Run._publish``: a writer that cleans up after an unknown outcome destroys what lands later."""

    def late_landing() -> set[str]:
        history, _ = history_of(1)
        late: list[tuple[str, bytes]] = []

        class Late(FaultyStore):
            def put(self, key: str, data: bytes, **conditions: object) -> Version:  # type: ignore[override]
                if key == manifest_key(2):
                    late.append((key, data))
                    raise OutcomeUnknown("no answer", key=key)
                return super().put(key, data, **conditions)  # type: ignore[arg-type]

        run = Run(Late(history.inner), "run-a", clock=history.clock, settle_seconds=0.5)
        with pytest.raises(OutcomeUnknown):
            commit(run, 1)
        key, data = late[0]
        history.inner.put(key, data, if_absent=True)
        return history.missing(history.head())

    assert late_landing() == set()

    monkeypatch.setattr(Run, "_publish", publish_or_delete)
    assert late_landing()


def test_rule_4_a_fenced_run_leaves_everything_where_it_is() -> None:
    """Not in ``abort``, not when fenced: the heir may name it."""
    history, stalled = history_of(1)
    attempt = stalled.attempt()
    ref = stage_one(stalled, attempt, 1, "mine")
    history.run("run-b").claim()
    with pytest.raises(FencedError):
        stalled.publish(draft_of(1, (ref,)), attempt)
    assert ref.path in history.keys("checkpoints/")
    assert all(call.verb != "delete" for call in history.store.calls)


# --- rule 5 --------------------------------------------------------------------------------------


def stalled_writer(landed_unseen: bool) -> tuple[History, Run, tuple[CheckpointManifest, CheckpointId]]:
    """A writer sleeps before its create; its number is taken, and pruned, and forgotten."""
    history, stalled = history_of(2)
    attempt = stalled.attempt()
    ref = stage_one(stalled, attempt, 2, "stalled")
    heir = history.run("run-b")
    heir.claim()
    for epoch in (2, 3):
        commit(heir, epoch)
    history.prune(1)
    if landed_unseen:
        history.plan = fault_on("put", manifest_key(3), FaultKind.LOST_RESPONSE)
    return history, stalled, (draft_of(2, (ref,)), attempt)


def test_rule_5_who_waits_is_told_after_the_floor_was_checked_and_before_the_hint_moves() -> None:
    """Whatever becomes of the hint, and of the process: what was told is in the store."""
    history, run = history_of(1)
    attempt = run.attempt()
    draft, calls = draft_of(2, (stage_one(run, attempt, 2, "new"),)), len(history.store.calls)
    told: list[list[tuple[str, str]]] = []
    made = run.publish(
        draft,
        attempt,
        on_commit=lambda: told.append([(call.verb, call.key) for call in history.store.calls[calls:]]),
    )
    assert told == [[("put", manifest_key(made.checkpoint_id)), ("read", CONTROL_KEY)]]
    assert [(call.verb, call.key) for call in history.store.calls[-1:]] == [("put", LATEST_KEY)]


@pytest.mark.parametrize("landed_unseen", [False, True])
def test_rule_5_the_floor_is_checked_after_every_create_that_is_ours(
    monkeypatch: Patch, landed_unseen: bool
) -> None:
    """``publish.check_floor``, by answer and by read-back: without it a ghost believes it has committed."""
    history, stalled, (draft, attempt) = stalled_writer(landed_unseen)
    told: list[str] = []
    with pytest.raises(FencedError, match="run-b"):
        stalled.publish(draft, attempt, on_commit=lambda: told.append("it counts"))
    assert told == []
    assert history.head().run_id == "run-b"
    assert ("put", LATEST_KEY) not in [(c.verb, c.key) for c in history.store.calls[-3:]]
    with pytest.raises(FencedError):
        stalled.attempt()

    def no_check(store: ObjectStore, number: int, store_id: str) -> Control:
        return Control(store_id)

    monkeypatch.setattr(publish, "check_floor", no_check)
    history, stalled, (draft, attempt) = stalled_writer(landed_unseen)
    ghost = stalled.publish(draft, attempt)
    assert find_checkpoint(history.inner, ghost.checkpoint_id) is None
