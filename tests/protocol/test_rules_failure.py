"""Rules 9 to 12 of the commit protocol: failing closed, unsafe stores, costs, small records.

Each test names the function that keeps its rule. Where the damage can be shown, the rule is taken out
inside the test, and the damage is there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import (
    Denied,
    FormatError,
    RefusedError,
    Unavailable,
    UnsafeStore,
)
from pyspark_checkpoint.format.keys import CONTROL_KEY, LATEST_KEY, manifest_key
from pyspark_checkpoint.format.records import Control, Pin, SinkCommitStatus, encode_control
from pyspark_checkpoint.history import seal
from pyspark_checkpoint.history import sink_status as status
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.store.base import Version
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind, FaultyStore
from tests.contract.races import Patch
from tests.support.history_kit import History, commit, draft_of, history_of

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
        def get(self, key: str, **range_: object) -> bytes:
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
