"""A newest manifest that is gone: ``_latest`` proves that it was there, and every report says so."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyspark_checkpoint.cli.commands.watch_command import Watched
from pyspark_checkpoint.cli.main import main
from pyspark_checkpoint.errors import CheckpointError, RefusedError
from pyspark_checkpoint.format.keys import LATEST_KEY, manifest_key
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.records import SinkCommitStatus, encode_latest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.deletion import remove_lost_records
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.recovery import recover_latest_validated
from pyspark_checkpoint.history.replication import copy_store
from pyspark_checkpoint.history.rollback import rollback
from pyspark_checkpoint.history.seal import create_seal, find_seal
from pyspark_checkpoint.history.sink_status import read_status, record_status
from pyspark_checkpoint.restorer.api import RestoreRequest, dry_run, restore
from pyspark_checkpoint.store.memory import MemoryStore
from tests.support.history_kit import History, commit, history_of
from tests.support.made_location import MadeLocation, capture, contents, needed, open_capture

LOST = "is missing, although _latest shows that it was committed"


def lost_history(epochs: int = 4, lost: int = 1) -> History:
    """A store whose newest manifests somebody has deleted by hand."""
    history, _ = history_of(epochs)
    history.inner.delete([manifest_key(number) for number in range(epochs - lost + 1, epochs + 1)])
    return history


def test_the_head_says_what_is_lost_after_it() -> None:
    """The newest that was committed, also when several are gone."""
    for lost in (1, 3):
        head = find_head(lost_history(4, lost).inner)
        assert head is not None
        assert (head.number, head.lost) == (4 - lost, 4)


def test_nothing_is_lost_where_the_pointer_is_stale_torn_or_missing() -> None:
    """It names what is there, or was pruned, or nothing: none of these proves a loss."""
    history, _ = history_of(6)
    history.prune(2)
    for hint in (encode_latest(6), encode_latest(5), encode_latest(1), b"torn"):
        history.inner.put(LATEST_KEY, hint)
        head = find_head(history.inner)
        assert head is not None
        assert (head.number, head.lost) == (6, None)


def test_recovery_reports_the_lost_checkpoint() -> None:
    """It goes back to the one before, and says so as of any that is damaged."""
    history = lost_history(4, 2)
    report = recover_latest_validated(history.inner, history.clock)
    assert report.chosen_id == 2
    assert f"skipped checkpoint 4: {manifest_key(4)}: {LOST}, and so are those from 3 on" in report.report


def test_a_claim_refuses_a_store_whose_newest_checkpoint_is_lost() -> None:
    """Its number would be given to another checkpoint, and nobody would know. Nothing is written."""
    history = lost_history()
    before = history.keys()
    with pytest.raises(RefusedError, match=f"checkpoint 4 {LOST}; the newest that is left is 3") as caught:
        history.run("run-b").claim()
    assert caught.value.hint is not None and "ckpt rollback URL 3" in caught.value.hint
    assert history.keys() == before


def test_a_first_commit_without_a_claim_refuses_it_too() -> None:
    """A sink that knows its run only at its commit; and one that looked before, and looks again."""
    history = lost_history()
    run = history.run("run-b")
    run.refresh()
    run.refresh()
    with pytest.raises(RefusedError, match=LOST):
        commit(run, 4)
    assert history.head().checkpoint_id == 3


def test_a_rollback_accepts_the_loss() -> None:
    """Going back on purpose is how one says so; the next run goes on from there."""
    history = lost_history()
    made = rollback(history.store, 3, clock=history.clock)
    assert (made.checkpoint_id, made.rollback_of) == (4, 3)
    new = history.run("run-b")
    assert new.claim() is not None
    assert commit(new, 3).checkpoint_id == 6
    assert list(CheckpointStore(history.inner).verify()) == []


def lost_with_records() -> History:
    """Manifests 3 and 4 are gone; the seals and statuses of all four are there."""
    history, run = history_of(0)
    for epoch in range(4):
        made = commit(run, epoch, sink_names=("out",))
        create_seal(history.inner, made, {f"commits/{epoch}": b"v1"}, history.clock)
        record_status(history.inner, made, "out", SinkCommitStatus.FAILED, history.clock)
        record_status(history.inner, made, "out", SinkCommitStatus.COMMITTED, history.clock)
    history.inner.delete([manifest_key(3), manifest_key(4)])
    return history


def test_a_rollback_that_accepts_the_loss_removes_what_was_recorded_of_the_lost() -> None:
    """Their numbers are given again, and records are created once: they would stand in the way."""
    history = lost_with_records()
    made = rollback(history.store, 2, clock=history.clock)
    assert (made.checkpoint_id, made.rollback_of) == (3, 2)
    assert not history.control().pins
    seal = find_seal(history.inner, made)
    assert seal is not None and dict(seal.files) == {"commits/1": b"v1"}
    assert read_status(history.inner, made, "out") is SinkCommitStatus.COMMITTED
    new = history.run("run-b")
    claimed = new.claim()
    assert claimed is not None and claimed.checkpoint_id == 4
    assert find_seal(history.inner, claimed) is not None
    assert read_status(history.inner, claimed, "out") is SinkCommitStatus.COMMITTED
    assert list(CheckpointStore(history.inner).verify()) == []


def test_behind_a_damaged_head_the_records_of_the_lost_are_removed_too() -> None:
    """Going back is the way out of both at once."""
    history = lost_with_records()
    history.flip(manifest_key(2))
    made = rollback(history.store, 1, clock=history.clock)
    assert (made.checkpoint_id, made.rollback_of) == (3, 1)
    seal = find_seal(history.inner, made)
    assert seal is not None and dict(seal.files) == {"commits/0": b"v1"}
    assert history.keys("manifests/manifest-0000000004.") == []


def test_a_rollback_that_is_refused_removes_nothing() -> None:
    """Who brings the lost manifests back from a copy finds their records as they were."""
    history = lost_with_records()
    before = history.keys()
    with pytest.raises(CheckpointError):
        rollback(history.store, 4, clock=history.clock)
    assert history.keys() == before


def test_records_of_a_number_that_is_taken_meanwhile_are_kept() -> None:
    """Another rollback was faster: what is recorded of its checkpoint is not what was lost."""
    history = lost_with_records()
    kept = history.keys("manifests/manifest-0000000003.")
    history.inner.put(manifest_key(3), b"of another run")
    remove_lost_records(history.inner, 2, 4)
    assert history.keys("manifests/manifest-0000000003.") == sorted([*kept, manifest_key(3)])
    assert history.keys("manifests/manifest-0000000004.") == []
    assert len(history.keys("manifests/manifest-0000000002.")) == 4


def test_a_manifest_that_was_brought_back_is_not_lost() -> None:
    """From a copy of the store: then everything is as it was."""
    history, _ = history_of(3)
    kept = history.inner.get(manifest_key(3))
    history.inner.delete([manifest_key(3)])
    history.inner.put(manifest_key(3), kept)
    assert history.run("run-b").claim() is not None


def test_a_copy_says_what_its_source_has_lost(caplog: pytest.LogCaptureFixture) -> None:
    """The copy itself is whole, and shows nothing of it."""
    history, target = lost_history(), MemoryStore()
    with caplog.at_level(logging.WARNING):
        copy_store(history.inner, target, clock=history.clock)
    assert f"checkpoint 4 {LOST}" in caplog.text


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1, 2)


@pytest.fixture
def url(made: MadeLocation, tmp_path: Path) -> str:
    """Three captured batches, of which the last one's manifest is gone."""
    capture(made, str(tmp_path / "store"), 0, 1, 2)
    (tmp_path / "store" / manifest_key(3)).unlink()
    return str(tmp_path / "store")


def test_a_restore_says_what_it_steps_over_and_records_that_it_went_back(
    made: MadeLocation, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As it does for a newest checkpoint that is damaged."""
    fresh = tmp_path / "fresh"
    with caplog.at_level(logging.WARNING):
        assert dry_run(RestoreRequest(url, str(fresh))).epoch == 1
        assert LOST in caplog.text
        caplog.clear()
        assert restore(url, str(fresh)).epoch == 1
    assert f"{manifest_key(3)} {LOST}" in caplog.text
    assert contents(fresh) == needed(made, 1)
    newest = CheckpointStore.open(url).load_latest()
    assert newest is not None
    assert (newest.kind, newest.rollback_of) == (ManifestKind.ROLLBACK, 2)
    assert open_capture(made, url).run.head is not None, "a query that starts from there may claim"


def test_list_and_watch_show_the_lost_checkpoint(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the number that it had; the newest is the one that is left."""
    overview = CheckpointStore.open(url).overview()
    assert [entry.number for entry in overview.entries] == [1, 2, 3]
    assert overview.newest is not None and overview.newest.number == 2
    main(["list", url])
    assert f"checkpoint 3: {LOST}" in capsys.readouterr().out
    main(["list", url, "--json"])
    assert LOST in capsys.readouterr().out
    look = Watched("q", CheckpointStore.open(url)).look()
    assert look.problem is not None and LOST in look.problem


def test_verify_finds_the_lost_checkpoint(url: str) -> None:
    """The pointer names it."""
    found = [str(finding) for finding in CheckpointStore.open(url).verify()]
    assert any("names checkpoint 3, but the newest one is 2" in finding for finding in found)
