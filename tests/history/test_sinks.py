"""What is known of sinks survives takeovers and crashes; what is pending is driven again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pyspark_checkpoint.errors import RefusedError, StoreError
from pyspark_checkpoint.format.keys import failed_key, seal_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.records import SinkCommitStatus, decode_status
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.rollback import rollback
from pyspark_checkpoint.history.seal import create_seal, find_seal
from pyspark_checkpoint.history.sink_status import read_status, record_status
from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind, SimulatedCrash, StoreCall
from tests.support.history_kit import History, commit, history_of

COMMITTED, FAILED, PENDING = SinkCommitStatus.COMMITTED, SinkCommitStatus.FAILED, SinkCommitStatus.PENDING


def sealed_history() -> History:
    """Two checkpoints; the newest has a sink that has committed, one that has not, and a seal."""
    history, run = history_of(1)
    made = commit(run, 1, sink_names=("done", "open"))
    record_status(history.inner, made, "done", COMMITTED, history.clock)
    create_seal(history.inner, made, {"commits/1": b"v1"}, history.clock)
    return history


def crash_at(history: History, action: Callable[[], object], index: int) -> bool:
    """Whether the process died at call ``index``, counted from the manifest's create on."""
    seen = [-1]

    def plan(call: StoreCall) -> Fault | None:
        if call.verb == "put" and call.key.startswith("manifests/manifest-0000000003.json"):
            seen[0] = 0
        elif seen[0] >= 0:
            seen[0] += 1
        return Fault(FaultKind.CRASH_AFTER) if seen[0] == index else None

    history.plan = plan
    try:
        action()
    except SimulatedCrash:
        return True
    finally:
        history.plan = lambda call: None
    return False


@pytest.mark.parametrize("kind", [ManifestKind.CLAIM, ManifestKind.ROLLBACK])
def test_a_takeover_succeeds_where_records_of_another_manifest_stand_in_the_way(
    kind: ManifestKind, caplog: pytest.LogCaptureFixture
) -> None:
    """It is committed by then. What cannot be carried over is said, also when a claim is repeated."""
    history = sealed_history()
    ghost = replace(history.head(), checkpoint_id=3, commit_nonce="f" * 32)
    create_seal(history.inner, ghost, {"commits/9": b"ghost"}, history.clock)
    record_status(history.inner, ghost, "done", COMMITTED, history.clock)
    if kind is ManifestKind.CLAIM:
        heir = history.run("run-b")
        made = heir.claim()
        assert heir.claim() == made
    else:
        made = rollback(history.store, 2, clock=history.clock)
    assert made is not None
    assert (made.checkpoint_id, made.kind) == (3, kind)
    assert not history.control().pins
    assert find_seal(history.inner, made) is None
    assert read_status(history.inner, made, "done") is PENDING
    assert "the seal of checkpoint 2 is not carried over to 3" in caplog.text


def test_a_rollback_that_cannot_carry_drops_its_pin() -> None:
    """The manifest is there, so that the pin protects nothing any more."""
    history = sealed_history()

    def plan(call: StoreCall) -> Fault | None:
        sealing = call.verb == "put" and call.key == seal_key(3)
        return Fault(FaultKind.UNAVAILABLE) if sealing else None

    history.plan = plan
    with pytest.raises(StoreError):
        rollback(history.store, 2, clock=history.clock)
    assert history.head().kind is ManifestKind.ROLLBACK
    assert not history.control().pins


@pytest.mark.parametrize("kind", [ManifestKind.CLAIM, ManifestKind.ROLLBACK])
def test_a_takeover_that_dies_at_any_call_forgets_neither_seal_nor_commits(kind: ManifestKind) -> None:
    """``seal.carry_records`` looks further back: the one before may have died on the way."""
    crashes = 0
    for index in range(20):
        history = sealed_history()

        def act(history: History = history) -> object:
            if kind is ManifestKind.CLAIM:
                return history.run("run-b").claim()
            return rollback(history.store, 2, clock=history.clock)

        crashes += crash_at(history, act, index)
        fresh = History(inner=history.inner, clock=history.clock)
        again = "run-b" if fresh.head().run_id == "run-b" and index % 2 else "run-c"
        head = fresh.run(again).claim()
        assert head is not None
        assert read_status(fresh.inner, head, "done") is COMMITTED, index
        assert read_status(fresh.inner, head, "open") is PENDING, index
        found = find_seal(fresh.inner, head)
        assert found is not None, index
        assert dict(found.files) == {"commits/1": b"v1"}
        assert CheckpointStore(fresh.inner).recover_latest_validated().pending_sinks == ("open",)
        assert list(CheckpointStore(fresh.inner).verify()) == []
    assert crashes > 5


def test_a_new_epoch_takes_nothing_over() -> None:
    """Only what says the same again has the records of what it repeats."""
    history = sealed_history()
    made = commit(history.run("run-b"), 2, sink_names=("done", "open"))
    assert read_status(history.inner, made, "done") is PENDING
    assert find_seal(history.inner, made) is None


def test_a_chain_of_claims_costs_a_bounded_number_of_requests() -> None:
    """A query that starts and dies a hundred times does not look back a hundred times."""
    history, run = history_of(1)
    commit(run, 1, sink_names=("open",))
    for start in range(30):
        history.run(f"run-{start}").claim()
    last = history.run("last")
    calls = history.calls(last.claim)
    assert len(calls) < 80


def prepared() -> tuple[History, CheckpointStore]:
    history, run = history_of(1)
    made = commit(run, 1, sink_names=("a", "b", "c"))
    store = CheckpointStore(history.store, clock=history.clock)
    store.record_sink_status(2, "a", COMMITTED)
    store.record_sink_status(2, "b", FAILED, "no disk")
    assert made.checkpoint_id == 2
    return history, store


def test_pending_and_failed_sinks_are_driven_again_and_committed_ones_are_not() -> None:
    """Fault 8: failed sinks were never driven again."""
    _, store = prepared()
    called: list[tuple[str, int]] = []

    def sink(name: str) -> Callable[[CheckpointManifest], object]:
        return lambda manifest: called.append((name, manifest.checkpoint_id))

    report = store.recover_latest_validated()
    after = store.drive_sinks(report, {name: sink(name) for name in "abc"})
    assert called == [("b", 2), ("c", 2)]
    assert after is not None
    assert set(after.sink_commit_statuses.values()) == {COMMITTED}
    assert store.recover_latest_validated().sinks_to_drive == ()


def test_a_sink_that_fails_again_is_recorded_without_its_text_and_the_others_go_on() -> None:
    """Errors of foreign code may hold credentials: the kind of the error is kept, not what it says."""
    history, store = prepared()

    def broken(manifest: CheckpointManifest) -> None:
        raise OSError("password=hunter2")

    after = store.drive_sinks(store.recover_latest_validated(), {"b": broken, "c": lambda _: None})
    assert after is not None
    assert after.sink_commit_statuses == {"a": COMMITTED, "b": FAILED, "c": COMMITTED}
    keys = [failed_key(after.checkpoint_id, "b", number) for number in range(2)]
    failures = [decode_status(history.inner.get(key), key).message for key in keys]
    assert failures == ["no disk", "OSError"]
    assert store.recover_latest_validated().failed_sinks == ("b",)


def test_an_unregistered_sink_is_an_error_before_any_is_driven() -> None:
    """Fault 8: reconciliation ran before any sink was registered, and found nothing to do."""
    _, store = prepared()
    with pytest.raises(RefusedError, match="'b'"):
        store.drive_sinks(store.recover_latest_validated(), {"c": lambda _: pytest.fail("driven")})


def test_a_new_store_has_nothing_to_drive() -> None:
    """And says so without a sink."""
    store = CheckpointStore(History().store)
    assert store.drive_sinks(store.recover_latest_validated(), {}) is None
