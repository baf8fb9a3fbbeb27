"""Rules 6 and 7 of the commit protocol: which run may write, and epochs that come again.

Each test names the function that keeps its rule. Where the damage can be shown, the rule is taken out
inside the test, and the damage is there.
"""

from __future__ import annotations

import pytest

from pyspark_checkpoint.errors import (
    FencedError,
    OutcomeUnknown,
    RefusedError,
    StaleAttempt,
)
from pyspark_checkpoint.format.keys import manifest_key, parse_manifest_key
from pyspark_checkpoint.format.manifest import ConnectorCheckpoint, ManifestKind, QueryInfo
from pyspark_checkpoint.history import rules
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.head import Head
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.rollback import rollback
from pyspark_checkpoint.history.run import CLAIM_ROUNDS, Run
from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind, StoreCall, fault_on, no_faults
from tests.contract.races import Patch, lost_for_good, once
from tests.support.history_kit import History, commit, history_of

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
    """Both claim the same number: who loses it claims the next, and the winner is fenced by that."""
    history, _ = history_of(2)
    first, second = history.run("run-b"), history.run("run-c")
    second.store = history.inner
    first.refresh()
    second.refresh()
    done = once(history, "put", manifest_key(3), second.claim)
    claimed = first.claim()
    assert done
    assert claimed is not None
    assert (claimed.checkpoint_id, claimed.run_id, claimed.generation) == (4, "run-b", 3)
    with pytest.raises(FencedError, match="run-b"):
        commit(second, 2)
    assert commit(first, 2).run_id == "run-b"


def goes_on(history: History, old: Run, times: int = 1) -> list[int]:
    """The old run commits its next epoch right before each of the next creates of somebody else."""
    done: list[int] = []
    old.store = history.inner

    def plan(call: StoreCall) -> Fault | None:
        if len(done) < times and call.verb == "put" and parse_manifest_key(call.key) is not None:
            done.append(commit(old, history.head().epoch + 1).checkpoint_id)
        return None

    history.plan = plan
    return done


def test_rule_6_a_new_run_that_loses_to_the_old_ones_commit_claims_again(monkeypatch: Patch) -> None:
    """``Run._loser_of``: nobody has taken it over. Without it nobody is left once the old run has ended."""
    history, old = history_of(2)
    done = goes_on(history, old, 3)
    claimed = history.run("run-b").claim()
    assert done == [3, 4, 5]
    assert claimed is not None
    assert (claimed.checkpoint_id, claimed.epoch, claimed.parent_id) == (6, 4, 5)
    with pytest.raises(FencedError, match="run-b"):
        commit(old, 5)

    def fenced(self: Run, number: int, error: FencedError) -> FencedError:
        self._fence = error
        return error

    monkeypatch.setattr(Run, "_loser_of", fenced)
    history, old = history_of(2)
    goes_on(history, old)
    new = history.run("run-b")
    with pytest.raises(FencedError, match="run-a"):
        new.claim()
    with pytest.raises(FencedError, match="run-a"):
        new.claim()


def test_rule_6_a_claim_that_always_loses_gives_up_and_may_be_tried_again() -> None:
    """It is not fenced: the next claim takes the store over."""
    history, old = history_of(1)
    done = goes_on(history, old, CLAIM_ROUNDS)
    new = history.run("run-b")
    with pytest.raises(StaleAttempt, match=f"gave up claiming after {CLAIM_ROUNDS} commits"):
        new.claim()
    assert len(done) == CLAIM_ROUNDS
    assert new.claim() is not None
    assert history.head().run_id == "run-b"


def test_rule_6_every_head_is_checked_before_it_is_claimed() -> None:
    """What the old run commits meanwhile may be something that the new one must not take over."""
    history, old = history_of(2)
    goes_on(history, old)
    seen: list[int] = []

    def check(head: Head) -> None:
        seen.append(head.manifest.epoch)
        if len(seen) == 2:
            raise RefusedError("the location is behind")

    with pytest.raises(RefusedError, match="behind"):
        history.run("run-b").claim(check)
    assert seen == [1, 2]
    assert history.head().run_id == "run-a"


def test_rule_6_an_unanswered_claim_is_no_reason_to_be_fenced() -> None:
    """It never landed, as the head proves; the old run went on, and is taken over by the next claim."""
    history, old = history_of(1)
    new = history.run("run-b", settle_seconds=0.5)
    history.plan = fault_on("put", manifest_key(2), FaultKind.LOST_REQUEST, times=100)
    with pytest.raises(OutcomeUnknown):
        new.claim()
    history.plan = no_faults
    commit(old, 1)
    assert new.claim() is not None
    with pytest.raises(FencedError, match="run-b"):
        commit(old, 2)


def test_rule_6_a_rollback_goes_back_from_what_the_running_query_has_just_committed() -> None:
    """It is a run that has never published: it looks again. No pin is left."""
    history, old = history_of(3)
    done = goes_on(history, old, 2)
    made = rollback(history.store, 1, clock=history.clock)
    assert done == [4, 5]
    assert (made.checkpoint_id, made.kind, made.rollback_of) == (6, ManifestKind.ROLLBACK, 1)
    assert not history.control().pins
    with pytest.raises(FencedError, match="rollback-"):
        commit(old, 5)


def test_rule_6_a_run_that_cannot_prove_that_it_never_published_is_fenced() -> None:
    """``rules.forgets_runs_since``: a head names 64 runs, and after more says nothing of this one."""
    history, _ = history_of(1)
    new = history.run("run-x", settle_seconds=0.5)
    history.plan = lost_for_good(manifest_key(2))
    with pytest.raises(OutcomeUnknown):
        new.claim()
    history.plan = no_faults
    for number in range(rules.MAX_EARLIER_RUNS + 1):
        history.run(f"run-{number}").claim()
    assert "run-x" not in history.head().earlier_runs
    with pytest.raises(FencedError):
        new.claim()


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


def test_rule_7_a_duplicate_of_the_heads_epoch_replaces_it() -> None:
    """``rules.choose_kind``: same query, same offsets: a new checkpoint of the same epoch."""
    history, run = history_of(3)
    again = commit(run, 2, "other rows")
    assert (again.kind, again.epoch, again.checkpoint_id) == (ManifestKind.REPLACEMENT, 2, 4)
    assert [ref.epoch for ref in again.artifacts()] == [1, 2]
    assert not history.missing(again)


def test_rule_7_a_duplicate_commit_of_the_same_run_writes_nothing() -> None:
    """``rules.says_the_same``: compared by digests, for the attempt has other names."""
    history, run = history_of(3)
    before = history.numbers()
    made: list[object] = []
    calls = history.calls(lambda: made.append(commit(run, 2)))
    assert made == [history.head()]
    assert history.numbers() == before
    assert [verb for verb, key in calls if verb == "put" and not key.startswith("checkpoints/")] == []


def test_rule_7_a_duplicate_commit_of_another_run_is_written() -> None:
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
    """``rules.choose_kind`` and ``rules.check_query``: each would lose or duplicate rows."""
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
