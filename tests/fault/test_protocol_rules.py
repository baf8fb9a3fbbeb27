"""The twelve rules of the commit protocol, one by one: what they protect, and what happens without them.

Each test names the function that keeps its rule. Where the damage can be shown, the rule is taken out
inside the test, and the damage is there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import (
    Denied,
    FencedError,
    FormatError,
    OutcomeUnknown,
    RefusedError,
    StaleAttempt,
    Unavailable,
    UnsafeStore,
)
from pyspark_checkpoint.format.keys import CONTROL_KEY, LATEST_KEY, manifest_key
from pyspark_checkpoint.format.manifest import ConnectorCheckpoint, ManifestKind, QueryInfo
from pyspark_checkpoint.format.records import Control, Pin, SinkCommitStatus, encode_control, encode_latest
from pyspark_checkpoint.history import head as head_module
from pyspark_checkpoint.history import living, lookup, publish, retain, rollback, rules, seal, status
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.commit import Run
from pyspark_checkpoint.history.delete import delete_checkpoint
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.orphans import execute_orphans, scan_orphans
from pyspark_checkpoint.history.savepoint import add_savepoint, remove_savepoint
from pyspark_checkpoint.store.base import ObjectStore, Version
from pyspark_checkpoint.store.faults import Call, Fault, FaultKind, FaultPlan, FaultyStore, fault_on
from pyspark_checkpoint.store.memory import MemoryStore
from tests.history_kit import History, commit, draft_of, history_of, stage_one

Patch = pytest.MonkeyPatch


def once(history: History, verb: str, key_part: str, action) -> list[str]:  # type: ignore[no-untyped-def]
    """Let ``action`` happen right before the first call of ``verb`` on ``key_part``: a perfect race."""
    done: list[str] = []

    def plan(call: Call) -> Fault | None:
        if not done and call.verb == verb and key_part in call.key:
            done.append(call.key)
            action()
        return None

    history.plan = plan
    return done


def lost_for_good(key: str) -> FaultPlan:
    """The first put of ``key`` lands without an answer; no later one gets through."""
    seen: list[int] = []

    def plan(call: Call) -> Fault | None:
        if (call.verb, call.key) != ("put", key):
            return None
        seen.append(call.index)
        return Fault(FaultKind.LOST_RESPONSE if len(seen) == 1 else FaultKind.LOST_REQUEST)

    return plan


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


def quiet_prune(history: History) -> None:
    """Prune by another process, which no fault plan watches."""
    other = History(inner=history.inner, clock=history.clock)
    other.prune(1)


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


def test_rule_3_whoever_loses_a_number_to_another_run_is_fenced(monkeypatch: Patch) -> None:
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
    """Two runs publish the same bytes of state: one is fenced, although nothing differs but the nonce."""
    history = History()
    runs = [history.run("run-a"), history.run("run-b")]
    attempts = [run.attempt() for run in runs]
    refs = [stage_one(run, at, 0, "same") for run, at in zip(runs, attempts, strict=True)]
    runs[0].publish(draft_of(0, (refs[0],)), attempts[0])
    with pytest.raises(FencedError):
        runs[1].publish(draft_of(0, (refs[1],)), attempts[1])


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


def test_rule_4_nobody_deletes_what_he_staged(monkeypatch: Patch) -> None:
    """``Run.abandon``: a writer that cleans up after an unknown outcome destroys what lands later."""

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

    def clean_up(self: Run, attempt: object) -> None:
        self.store.delete([info.key for info in self.store.list(f"checkpoints/{attempt}/")])

    monkeypatch.setattr(Run, "abandon", clean_up)
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


def stalled_writer(landed_unseen: bool) -> tuple[History, Run, object]:
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


@pytest.mark.parametrize("landed_unseen", [False, True])
def test_rule_5_the_floor_is_checked_after_every_create_that_is_ours(
    monkeypatch: Patch, landed_unseen: bool
) -> None:
    """``publish.check_floor``, by answer and by read-back: without it a ghost believes it has committed."""
    history, stalled, (draft, attempt) = stalled_writer(landed_unseen)  # type: ignore[misc]
    with pytest.raises(FencedError, match="run-b"):
        stalled.publish(draft, attempt)
    assert history.head().run_id == "run-b"
    assert ("put", LATEST_KEY) not in [(c.verb, c.key) for c in history.store.calls[-3:]]
    with pytest.raises(FencedError):
        stalled.attempt()

    def no_check(store: ObjectStore, number: int, store_id: str) -> Control:
        return Control(store_id)

    monkeypatch.setattr(publish, "check_floor", no_check)
    history, stalled, (draft, attempt) = stalled_writer(landed_unseen)  # type: ignore[misc]
    ghost = stalled.publish(draft, attempt)
    assert find_checkpoint(history.inner, ghost.checkpoint_id) is None


# --- rule 6 --------------------------------------------------------------------------------------


def test_rule_6_a_claim_names_what_its_parent_names_and_fences_the_old_run() -> None:
    """``Run.claim``: the old run is refused at its next commit; nothing of it is visible."""
    history, old = history_of(3)
    new = history.run("run-b", instance_id="host-2")
    claimed = new.claim()
    assert claimed is not None
    parent = find_checkpoint(history.inner, 3)
    assert parent is not None
    assert claimed.kind is ManifestKind.CLAIM
    assert claimed.operators == parent.manifest.operators
    assert (claimed.epoch, claimed.generation, claimed.parent_sha256) == (2, 2, parent.sha256)
    with pytest.raises(FencedError, match="host-2"):
        commit(old, 3)
    assert commit(new, 3).generation == 2
    assert history.head().run_id == "run-b"


def test_rule_6_two_runs_that_start_together_resolve_to_one() -> None:
    """Both claim the same number; one wins, the other is fenced before it has written anything else."""
    history, _ = history_of(2)
    first, second = history.run("run-b"), history.run("run-c")
    first.refresh()
    second.refresh()
    done = once(history, "put", manifest_key(3), lambda: second_claims(history, second))
    with pytest.raises(FencedError, match="run-c"):
        first.claim()
    assert done
    assert history.head().run_id == "run-c"


def second_claims(history: History, second: Run) -> None:
    second.store = history.inner
    second.claim()


def test_rule_6_a_fenced_run_is_fenced_for_good() -> None:
    """No call of it reaches the store any more, whatever it is asked to do."""
    history, old = history_of(1)
    history.run("run-b").claim()
    with pytest.raises(FencedError):
        commit(old, 1)
    for action in (old.claim, old.attempt, old.refresh):
        history.store.calls.clear()
        with pytest.raises(FencedError):
            action()
        assert history.store.calls == []


def test_rule_6_a_process_that_remembers_nothing_does_not_take_the_store_back(monkeypatch: Patch) -> None:
    """``rules.was_taken_over``: Spark re-forks idle workers, so a run may have no memory of its fence."""
    history, _ = history_of(2)
    commit(history.run("run-b"), 2)
    with pytest.raises(FencedError, match="run-b"):
        history.run("run-a").attempt()
    monkeypatch.setattr(rules, "was_taken_over", lambda head, run_id: False)
    assert commit(history.run("run-a"), 3).run_id == "run-a"


def test_rule_6_a_commit_that_landed_unseen_does_not_let_its_run_come_back(monkeypatch: Patch) -> None:
    """``Run._check_takeover``: its own manifest is there, but an heir stands on it already."""
    history, _ = history_of(1)
    first = history.run("run-x", settle_seconds=0.5)
    history.plan = lost_for_good(manifest_key(2))
    with pytest.raises(OutcomeUnknown):
        commit(first, 1)
    history.plan = lambda call: None
    heir = history.run("run-y")
    heir.claim()
    with pytest.raises(FencedError, match="run-y"):
        commit(first, 2)


def test_rule_6_the_first_commit_is_the_claim_where_nobody_claimed() -> None:
    """A sink that knows its run id only at commit takes over with its first commit."""
    history, _ = history_of(2)
    made = commit(history.run("run-b"), 2)
    assert (made.kind, made.generation) == (ManifestKind.EPOCH, 2)


def test_rule_6_readers_never_claim() -> None:
    """Opening, listing, loading, recovering and verifying write nothing."""
    history, _ = history_of(3)
    store = CheckpointStore(history.store)

    def read_all() -> None:
        store.load_latest()
        store.load_by_id(2)
        store.list()
        store.recover_latest_validated()
        list(store.verify())
        store.savepoints()

    assert {verb for verb, _ in history.calls(read_all)} <= {"get", "read", "head", "list", "stream"}


# --- rule 7 --------------------------------------------------------------------------------------


def test_rule_7_the_heads_epoch_again_replaces_it() -> None:
    """``rules.choose_kind``: same query, same offsets: a new checkpoint of the same epoch."""
    history, run = history_of(3)
    again = commit(run, 2, "other rows")
    assert (again.kind, again.epoch, again.checkpoint_id) == (ManifestKind.REPLACEMENT, 2, 4)
    assert [ref.epoch for ref in again.artifacts()] == [1, 2]
    assert not history.missing(again)


def test_rule_7_the_same_again_by_the_same_run_writes_nothing() -> None:
    """``rules.says_the_same``: compared by digests, for the attempt has other names."""
    history, run = history_of(3)
    before = history.numbers()
    made: list[object] = []
    calls = history.calls(lambda: made.append(commit(run, 2)))
    assert made == [history.head()]
    assert history.numbers() == before
    assert [verb for verb, key in calls if verb == "put" and not key.startswith("checkpoints/")] == []


def test_rule_7_the_same_again_by_another_run_is_written() -> None:
    """Otherwise the old run would not be fenced."""
    history, old = history_of(3)
    made = commit(history.run("run-b"), 2)
    assert (made.checkpoint_id, made.kind) == (4, ManifestKind.REPLACEMENT)
    with pytest.raises(FencedError):
        commit(old, 3)


def test_rule_7_nothing_to_write_is_true_only_while_the_head_is_the_head(monkeypatch: Patch) -> None:
    """``Run._confirm_head``: without it a run whose head was replaced says that all is well."""
    history, run = history_of(3)
    commit(history.run("run-b"), 2, "other rows")
    with pytest.raises(FencedError, match="run-b"):
        commit(run, 2)
    monkeypatch.setattr(Run, "_confirm_head", lambda self, head: head.manifest)
    history, run = history_of(3)
    commit(history.run("run-b"), 2, "other rows")
    assert commit(run, 2).run_id == "run-a"


def test_rule_7_a_lower_epoch_other_offsets_and_another_query_are_refused(monkeypatch: Patch) -> None:
    """``rules.choose_kind`` and ``rules.check_query``: each would lose or double rows."""
    history, run = history_of(3)
    with pytest.raises(RefusedError, match=r"behind the store.*run ckpt restore"):
        commit(run, 1)
    with pytest.raises(RefusedError, match="other source offsets"):
        commit(run, 2, source_offsets={"kafka": ConnectorCheckpoint({"0": "999"})})
    with pytest.raises(RefusedError, match="query q"):
        commit(run, 3, query=QueryInfo(id="other"))
    with pytest.raises(RefusedError, match="query q"):
        history.run("run-b", query=QueryInfo(id="other")).claim()
    assert history.numbers() == [1, 2, 3]


# --- rule 8 --------------------------------------------------------------------------------------


def test_rule_8_a_pruned_number_cannot_be_pinned(monkeypatch: Patch) -> None:
    """``pins.may_pin``: a pin on something half deleted would promise what is not there."""
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
    assert remove_savepoint(history.inner, "one", history.clock).numbers == ()
    found = find_checkpoint(history.inner, 2)
    assert found is not None
    assert not history.missing(found.manifest)
    assert remove_savepoint(history.inner, "two", history.clock).numbers == (2,)
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


def test_rule_8_what_lives_is_read_after_the_floor_is_raised(monkeypatch: Patch) -> None:
    """``retain.settle_living`` comes after ``retain.raise_floor``: else a rollback is missed."""

    def race(living_first: bool) -> set[str]:
        history, _ = history_of(5, depth=0)

        def roll_back() -> None:
            rollback.rollback(history.inner, 2, clock=history.clock)

        real = living.settle_living
        if living_first:
            early = real(history.inner, history.control())
            assert early is not None
            keep_late = replace(
                early, manifests={n: m for n, m in early.manifests.items() if n >= 5}, paths=frozenset()
            )
            roll_back()
            monkeypatch.setattr(retain, "settle_living", lambda *args, **kw: keep_late)
        else:
            once(history, "put", CONTROL_KEY, roll_back)
        history.prune(1)
        monkeypatch.setattr(retain, "settle_living", real)
        return history.missing(history.head())

    assert race(living_first=False) == set()
    assert race(living_first=True)


def test_rule_8_a_pruner_whose_floor_was_raised_by_another_stops(monkeypatch: Patch) -> None:
    """``living.floor_is_ours``: what it took for living may be half deleted by the faster one."""
    history, _ = history_of(6)

    def faster() -> None:
        quiet_prune(history)

    once(history, "get", manifest_key(5), faster)
    head = find_head(history.inner)
    assert head is not None
    plan = retain.plan_prune(retain.read_recent(history.inner, head, keep=3), head.control, keep=3)
    result = retain.execute_prune(history.store, plan, history.clock)
    assert result.stopped
    assert result.removal.numbers == ()
    assert history.control().floor == 6
    assert not history.missing(history.head())


@pytest.mark.parametrize("damage", ["missing", "unreadable"])
def test_rule_8_a_living_manifest_that_cannot_be_read_stops_every_delete(damage: str) -> None:
    """``living.read_living``: what it names cannot be told, so nothing may go."""
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

        def plan(call: Call, seen: list[int] = seen, index: int = index) -> Fault | None:
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
    """And nothing else goes: whatever a living manifest names stays."""
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


# --- rule 9 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["get", "head", "read"])
def test_rule_9_a_store_that_does_not_answer_is_never_an_empty_one(verb: str) -> None:
    """Every read of the way to the head, refused in turn: an error, never None."""
    history, _ = history_of(3)
    history.plan = lambda call: Fault(FaultKind.UNAVAILABLE) if call.verb == verb else None
    with pytest.raises(Unavailable):
        find_head(history.store)
    with pytest.raises(Unavailable):
        CheckpointStore(history.store).recover_latest_validated()


def test_rule_9_a_permission_error_is_never_an_empty_store() -> None:
    """A store that denies reading is denied, not new."""
    history, _ = history_of(1)

    class Denying(FaultyStore):
        def get(self, key: str, **range_: object) -> bytes:  # type: ignore[override]
            raise Denied("403", key=key)

    with pytest.raises(Denied):
        CheckpointStore(Denying(history.inner)).load_latest()


def test_rule_9_an_unreadable_head_is_an_error_and_not_the_one_before() -> None:
    """Only recovery walks back, and says so."""
    history, _ = history_of(3)
    history.flip(manifest_key(3))
    with pytest.raises(FormatError, match="manifest-0000000003"):
        find_head(history.inner)
    report = CheckpointStore(history.inner).recover_latest_validated()
    assert report.chosen_id == 2
    assert "skipped checkpoint 3" in report.report


@pytest.mark.parametrize("left", ["all", "pointer", "manifests"])
def test_rule_9_a_lost_control_record_is_an_error_for_readers_and_writers(left: str) -> None:
    """``control.find_control_or_new``: nothing says what is valid then; it is made only in a new store."""
    history, _ = history_of(5)
    history.prune(2)
    history.inner.delete([CONTROL_KEY])
    if left == "pointer":
        history.inner.delete(history.keys("manifests/"))
    if left == "manifests":
        history.inner.delete([LATEST_KEY])
    for action in (
        lambda: find_head(history.inner),
        lambda: history.run("run-b").claim(),
        lambda: CheckpointStore(history.inner).load_by_id(5),
        lambda: CheckpointStore(history.inner).recover_latest_validated(),
        lambda: history.prune(1),
    ):
        with pytest.raises(FormatError, match="_control"):
            action()


def test_rule_9_the_control_record_of_another_store_is_an_error() -> None:
    """``control.find_control``: a prefix swapped under a running query is noticed at its commit."""
    history, run = history_of(2)
    history.inner.put(CONTROL_KEY, encode_control(Control("another store")))
    with pytest.raises(FormatError, match="another store"):
        commit(run, 2)


def test_rule_9_the_control_record_is_there_before_the_first_manifest() -> None:
    """So a crash in between leaves a store that is new, not one that has lost it."""
    history = History()
    run = history.run("run-a")
    calls = history.calls(lambda: commit(run, 0))
    puts = [key for verb, key in calls if verb == "put"]
    assert puts.index(CONTROL_KEY) < puts.index(manifest_key(1))
    fresh = History()
    fresh.run("run-a").refresh()
    assert fresh.keys() == [CONTROL_KEY]
    assert find_head(fresh.inner) is None


def test_rule_9_missing_manifests_are_an_error_and_not_an_empty_store() -> None:
    """The pointer proves that something was committed."""
    history, _ = history_of(2)
    history.inner.delete(history.keys("manifests/"))
    with pytest.raises(FormatError, match="missing"):
        find_head(history.inner)


# --- rule 10 -------------------------------------------------------------------------------------


def test_rule_10_a_store_that_ignores_conditions_is_refused_before_anything_is_written() -> None:
    """``require_conditional_writes`` in ``StoreAccess._writer``."""

    class Lying(FaultyStore):
        def put(self, key: str, data: bytes, **conditions: object) -> Version:  # type: ignore[override]
            return self.inner.put(key, data)

    inner = MemoryStore()
    store = Lying(inner)
    store.url = "s3://bucket/prefix"
    with pytest.raises(UnsafeStore):
        CheckpointStore(store).save(draft_of(0, ()))
    assert list(inner.list("manifests/")) == []
    accepted = CheckpointStore(store, accept_unsafe=True)
    assert accepted.save(draft_of(0, ())).checkpoint_id == 1


# --- rule 11 -------------------------------------------------------------------------------------


def test_rule_11_a_commit_costs_the_same_at_any_length_of_history() -> None:
    """Staged PUTs, the manifest, one GET of ``_control``, the pointer; never a LIST."""
    history, run = history_of(1)
    shapes = set()
    for epoch in range(1, 300):
        calls = history.calls(lambda epoch=epoch: commit(run, epoch))  # type: ignore[misc]
        shapes.add(tuple(verb for verb, _ in calls))
    assert shapes == {("put", "put", "read", "put")}


def test_rule_11_recovery_claim_and_prune_do_not_list() -> None:
    """They work from names and manifests."""
    history, _ = history_of(40)
    store = CheckpointStore(history.store)

    def work() -> None:
        store.recover_latest_validated()
        history.run("run-b").claim()
        history.prune(3)
        store.list_ids()

    assert [key for verb, key in history.calls(work) if verb == "list"] == []


# --- rule 12 -------------------------------------------------------------------------------------


def test_rule_12_records_of_another_manifest_do_not_count(monkeypatch: Patch) -> None:
    """``status.belongs``: a record that was written for a manifest which is not in the store."""
    history, run = history_of(1)
    made = commit(run, 1, sink_names=("out",))
    ghost = replace(made, commit_nonce="f" * 32)
    status.record_status(history.inner, ghost, "out", SinkCommitStatus.COMMITTED, history.clock)
    seal.create_seal(history.inner, ghost, {"commits/1": b"ghost"}, history.clock)
    assert status.read_status(history.inner, made, "out") is SinkCommitStatus.PENDING
    assert seal.find_seal(history.inner, made) is None
    monkeypatch.setattr(status, "belongs", lambda nonce, manifest: True)
    monkeypatch.setattr(seal, "belongs", lambda nonce, manifest: True)
    assert status.read_status(history.inner, made, "out") is SinkCommitStatus.COMMITTED
    assert seal.find_seal(history.inner, made) is not None


def test_rule_12_committed_wins_over_failed_in_any_order() -> None:
    """``status.read_status`` looks for the commit first."""
    history, run = history_of(1)
    made = commit(run, 1, sink_names=("a", "b", "c"))
    orders = {
        "a": (SinkCommitStatus.FAILED, SinkCommitStatus.COMMITTED),
        "b": (SinkCommitStatus.COMMITTED, SinkCommitStatus.FAILED),
    }
    for sink, states in orders.items():
        for state in states:
            status.record_status(history.inner, made, sink, state, history.clock)
    assert status.read_statuses(history.inner, made) == {
        "a": SinkCommitStatus.COMMITTED,
        "b": SinkCommitStatus.COMMITTED,
        "c": SinkCommitStatus.PENDING,
    }


def test_rule_12_a_seal_of_other_state_is_refused() -> None:
    """``seal.write_seal`` asks first; a seal is written once, for the manifest in the store."""
    history, run = history_of(1)
    made = commit(run, 1)
    files = {"commits/1": b"{}"}
    with pytest.raises(RefusedError, match="other state"):
        seal.write_seal(history.inner, made, files, history.clock, check=lambda m, f: "other state")
    ghost = replace(made, commit_nonce="f" * 32)
    with pytest.raises(RefusedError, match="not the one"):
        seal.write_seal(history.inner, ghost, files, history.clock, check=lambda m, f: None)
    seal.write_seal(history.inner, made, files, history.clock, check=lambda m, f: None)
    seal.write_seal(history.inner, made, files, history.clock, check=lambda m, f: None)
    with pytest.raises(RefusedError, match="other files"):
        seal.write_seal(history.inner, made, {"commits/1": b"x"}, history.clock, check=lambda m, f: None)


def test_the_control_record_cannot_be_changed_against_its_rules() -> None:
    """``control.check_step``: the floor never falls, the counter always rises."""
    from pyspark_checkpoint.history.control import swap_control

    history, _ = history_of(5)
    history.prune(2)
    for change in (
        lambda c: c.changed(floor=1),
        lambda c: replace(c, pins={"x": Pin(5, "0" * 64)}),
        lambda c: c.changed(store_id="other"),
        lambda c: c.changed(swept=5, floor=4),
    ):
        with pytest.raises(RefusedError):
            swap_control(history.inner, change, SYSTEM_CLOCK)
