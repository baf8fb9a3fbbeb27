"""Committing: what is stamped, what it costs, and going on in another process."""

from __future__ import annotations

import itertools

import pytest

from pyspark_checkpoint.errors import (
    FencedError,
    FormatError,
    OutcomeUnknown,
    RefusedError,
    StaleAttempt,
    Unavailable,
)
from pyspark_checkpoint.format.keys import LATEST_KEY, manifest_key
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.records import SinkCommitStatus, decode_latest
from pyspark_checkpoint.history import sink_status as status
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.seal import create_seal, find_seal
from pyspark_checkpoint.history.verify import check_link
from pyspark_checkpoint.testing.faulty_store import FaultKind, fault_on
from tests.support.history_kit import History, commit, draft_of, history_of, stage_one


def test_a_new_store_is_claimed_by_its_first_commit() -> None:
    """There is nobody to fence: ``claim`` makes the control record and nothing else."""
    history = History()
    run = history.run("run-a")
    assert run.claim() is None
    assert history.keys() == ["_control"]
    made = commit(run, 0)
    assert (made.checkpoint_id, made.generation, made.parent_id, made.parent_sha256) == (1, 1, 0, "")


def test_manifests_form_a_chain_of_digests() -> None:
    """Each names its parent's number and the digest of its parent's bytes."""
    history, run = history_of(3)
    history.run("run-b").claim()
    links = []
    for number in history.numbers():
        loaded = find_checkpoint(history.inner, number)
        assert loaded is not None
        links.append(loaded)
    assert [list(check_link(*pair)) for pair in itertools.pairwise(links)] == [[], [], []]
    assert run.run_id == links[0].manifest.run_id


def test_a_clock_that_runs_backwards_loses_nothing() -> None:
    """Times never fall from one checkpoint to the next, so that retention by age keeps its order."""
    history, run = history_of(1)
    first = history.head().timestamp_ms
    history.clock.sleep(-3600)
    second = commit(run, 1)
    assert second.timestamp_ms == first
    history.clock.sleep(7200)
    assert commit(run, 2).timestamp_ms > first


def test_the_pointer_moves_with_every_commit() -> None:
    """So that readers need four requests."""
    history, run = history_of(1)
    for epoch in range(1, 5):
        made = commit(run, epoch)
        assert decode_latest(history.inner.get(LATEST_KEY)) == made.checkpoint_id
    assert len(history.calls(lambda: find_head(history.store))) == 4
    head = find_head(history.inner)
    assert len(history.calls(lambda: find_head(history.store, cached=head))) == 2


@pytest.mark.parametrize("kind", [FaultKind.UNAVAILABLE, FaultKind.LOST_RESPONSE, FaultKind.LOST_REQUEST])
def test_a_pointer_that_cannot_be_moved_is_no_failure(kind: FaultKind) -> None:
    """Some services allow one write a second to an object."""
    history, run = history_of(1)
    history.plan = fault_on("put", LATEST_KEY, kind, times=1000)
    for epoch in range(1, 20):
        commit(run, epoch)
    assert history.head().checkpoint_id == 20


def test_another_process_of_the_run_goes_on_from_the_bytes_of_the_head() -> None:
    """Run id, control record and the head's bytes are all it needs; no request before its commit."""
    history, run = history_of(3)
    head = run.head
    assert head is not None
    other = history.run("run-a")
    assert history.calls(lambda: other.resume(head.control, head.data, head.number)) == []
    calls = history.calls(lambda: commit(other, 3))
    assert [verb for verb, _ in calls] == ["put", "put", "read", "put"]
    with pytest.raises(StaleAttempt):
        commit(run, 3, "this process did not hear of it")
    assert run.head is not None
    assert run.head.number == 4


def test_a_run_that_had_claimed_in_another_process_is_fenced_at_its_first_look() -> None:
    """It says so with ``claimed=True``, even where its name is in no manifest any more."""
    history, _ = history_of(2)
    with pytest.raises(FencedError):
        history.run("run-x", claimed=True).refresh()


def test_claiming_twice_is_claiming_once() -> None:
    """The head is this run's already."""
    history, _ = history_of(2)
    run = history.run("run-b")
    first = run.claim()
    assert run.claim() == first
    assert history.run("run-b").claim() == first
    assert history.numbers() == [1, 2, 3]


def test_what_was_staged_for_one_number_is_published_under_no_other() -> None:
    """A later number would let a collector take it; a gap would hide the head."""
    _, run = history_of(2)
    attempt = run.attempt()
    ref = stage_one(run, attempt, 2, "slow")
    commit(run, 2)
    with pytest.raises(StaleAttempt):
        run.publish(draft_of(3, (ref,)), attempt)
    beyond = type(attempt)(attempt.number + 5, attempt.uuid)
    with pytest.raises(RefusedError, match="gap"):
        run.publish(draft_of(3, ()), beyond)


def test_a_refused_request_is_reported_and_can_be_repeated() -> None:
    """``Unavailable`` means that nothing was written: the same attempt may be published again."""
    history, run = history_of(1)
    attempt = run.attempt()
    ref = stage_one(run, attempt, 1, "rows")
    history.plan = fault_on("put", manifest_key(2), FaultKind.UNAVAILABLE)
    with pytest.raises(Unavailable):
        run.publish(draft_of(1, (ref,)), attempt)
    assert run.publish(draft_of(1, (ref,)), attempt).checkpoint_id == 2


def test_a_commit_whose_floor_check_got_no_answer_is_found_again() -> None:
    """The manifest is there; the next attempt learns that, and writes nothing twice."""
    history, run = history_of(1)
    history.plan = fault_on("read", "_control", FaultKind.UNAVAILABLE)
    with pytest.raises(OutcomeUnknown, match="is written"):
        commit(run, 1)
    with pytest.raises(StaleAttempt):
        commit(run, 1)
    assert commit(run, 1).checkpoint_id == 2
    assert history.numbers() == [1, 2]


def test_a_damaged_manifest_under_the_next_number_is_an_error_and_no_fence() -> None:
    """Who has the number is not known, so nothing is decided."""
    history, run = history_of(1)
    history.run("run-b").claim()
    history.flip(manifest_key(2))
    for _ in range(2):  # a fenced run would say so from now on
        with pytest.raises(FormatError):
            commit(run, 1)


def test_a_claim_carries_the_seal_and_the_sinks_commits() -> None:
    """It names what its parent names; what is known of the parent holds for it too."""
    history, run = history_of(1)
    made = commit(run, 1, sink_names=("done", "open"))
    status.record_status(history.inner, made, "done", SinkCommitStatus.COMMITTED, history.clock)
    create_seal(history.inner, made, {"commits/1": b"v1"}, history.clock)
    claimed = history.run("run-b").claim()
    assert claimed is not None
    seal = find_seal(history.inner, claimed)
    assert seal is not None
    assert dict(seal.files) == {"commits/1": b"v1"}
    assert status.read_statuses(history.inner, claimed) == {
        "done": SinkCommitStatus.COMMITTED,
        "open": SinkCommitStatus.PENDING,
    }


def test_a_claim_after_a_claim_names_the_same_objects() -> None:
    """Runs that die at once leave claims; the epoch is still the one that was committed."""
    history, _ = history_of(2)
    for number in range(3, 8):
        claimed = history.run(f"run-{number}").claim()
        assert claimed is not None
        assert (claimed.checkpoint_id, claimed.epoch, claimed.kind) == (number, 1, ManifestKind.CLAIM)
        assert not history.missing(claimed)


def test_a_run_needs_an_id() -> None:
    """Without it nobody could be told apart."""
    with pytest.raises(RefusedError):
        Run(History().store, "")
