"""Who can write to an encrypted store and has no keys: no seal and no status of his is believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import RefusedError, UnknownVersion
from pyspark_checkpoint.format.envelope import encode_sealed
from pyspark_checkpoint.format.keys import committed_key, failed_key, manifest_key, seal_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.records import (
    Seal,
    SinkCommitStatus,
    SinkStatusRecord,
    encode_seal,
    encode_status,
)
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.seal import create_seal, find_seal
from pyspark_checkpoint.history.sink_status import record_status
from pyspark_checkpoint.restorer.api import restore, savepoint
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from tests.history.test_encrypted import RING, opened
from tests.support.history_kit import History
from tests.support.made_stream import MadeStream, key_ring

FORGED = b'v1\n{"nextBatchWatermarkMs":9999999999999}'


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return key_ring(tmp_path)


@pytest.fixture
def stream(tmp_path: Path, options: dict[str, str]) -> MadeStream:
    """A query that writes to an encrypted table, after three batches."""
    made = MadeStream(tmp_path, options=options)
    made.run(3)
    return made


def newest_of(stream: MadeStream) -> CheckpointManifest:
    newest = stream.history().load_latest()
    assert newest is not None
    return newest


def forge_seal(stream: MadeStream) -> tuple[Path, int]:
    """With the bytes of the bucket alone: number, nonce and batch are there to be read."""
    number = newest_of(stream).checkpoint_id
    fields = json.loads((stream.table / manifest_key(number)).read_bytes())
    batch = fields["batch_id"]
    forged = Seal(number, fields["commit_nonce"], 1, {f"commits/{batch}": FORGED})
    path = stream.table / seal_key(number)
    path.unlink(missing_ok=True)
    path.write_bytes(encode_seal(forged))
    return path, batch


def test_a_forged_seal_does_not_decide_where_a_query_goes_on(
    stream: MadeStream, options: dict[str, str], tmp_path: Path
) -> None:
    """The checkpoint is restored as one that has no seal: before its batch, which Spark runs again."""
    _, batch = forge_seal(stream)
    report = restore(str(stream.table), str(tmp_path / "fresh"), options=options)
    assert report.point is RestorePoint.BEFORE
    assert not (tmp_path / "fresh" / f"commits/{batch}").exists()
    commits = (tmp_path / "fresh" / "commits").glob("*")
    assert all(FORGED not in path.read_bytes() for path in commits)


def test_verify_finds_a_forged_seal(stream: MadeStream, options: dict[str, str]) -> None:
    """With the keys; without them nobody can tell."""
    path, _ = forge_seal(stream)
    with_keys = list(CheckpointStore.open(str(stream.table), options).verify())
    assert [finding.object for finding in with_keys] == [str(path.relative_to(stream.table))]
    assert "not authenticated" in str(with_keys[0])
    assert list(CheckpointStore.open(str(stream.table)).verify()) == []


def test_a_claim_does_not_carry_a_forged_seal_over(
    stream: MadeStream, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """By carrying it, a holder of the keys would authenticate it. The claim itself succeeds."""
    forge_seal(stream)
    history = CheckpointStore.open(str(stream.table), options, query=newest_of(stream).query)
    claimed = history.claim()
    assert claimed is not None
    assert find_seal(history.store, claimed, mac=history.authenticator()) is None
    assert "a seal is not carried over" in caplog.text


def test_a_seal_of_another_checkpoint_is_not_this_ones(stream: MadeStream, options: dict[str, str]) -> None:
    """A genuine one, moved: it is bound to number and nonce."""
    savepoint(str(stream.table), "sp", options=options)
    number = newest_of(stream).checkpoint_id
    genuine = (stream.table / seal_key(number)).read_bytes()
    stream.run(1)
    newest = newest_of(stream)
    (stream.table / seal_key(newest.checkpoint_id)).write_bytes(genuine)
    history = stream.history()
    assert find_seal(history.store, newest, mac=history.authenticator()) is None
    renamed = replace(newest, commit_nonce=json.loads(genuine)["commit_nonce"])
    assert find_seal(history.store, renamed, mac=history.authenticator()) is None


def test_a_genuine_seal_is_believed(stream: MadeStream, options: dict[str, str], tmp_path: Path) -> None:
    """Made for a savepoint; a second one finds it there, also without the keys, and changes nothing."""
    savepoint(str(stream.table), "sp", options=options)
    savepoint(str(stream.table), "again")
    report = restore(str(stream.table), str(tmp_path / "fresh"), at="sp", options=options)
    assert report.point is RestorePoint.AFTER
    assert list(CheckpointStore.open(str(stream.table), options).verify()) == []


def with_sinks() -> tuple[History, CheckpointStore, CheckpointManifest]:
    history = History()
    store = opened(history, key_ring=RING)
    return history, store, store.save(CheckpointManifest(checkpoint_id=0, epoch=0, sink_names=("a", "b")))


@pytest.mark.parametrize("status", [SinkCommitStatus.COMMITTED, SinkCommitStatus.FAILED])
def test_a_forged_status_counts_as_none(status: SinkCommitStatus, caplog: pytest.LogCaptureFixture) -> None:
    """By "committed" rows would be missing. The checkpoint itself is as good as before."""
    history, store, made = with_sinks()
    number = made.checkpoint_id
    key = committed_key(number, "a") if status is SinkCommitStatus.COMMITTED else failed_key(number, "a", 0)
    history.inner.put(key, encode_status(SinkStatusRecord(number, made.commit_nonce, "a", status, 1)))
    newest = store.load_latest()
    assert newest is not None
    assert newest.sink_commit_statuses == {"a": SinkCommitStatus.PENDING, "b": SinkCommitStatus.PENDING}
    assert f"{key} is not authenticated" in caplog.text
    report = store.recover_latest_validated()
    assert (report.chosen_id, report.pending_sinks, report.failed_sinks) == (number, ("a", "b"), ())
    assert [finding.object for finding in store.verify()] == [key]


def test_behind_a_forged_commit_the_genuine_failure_is_seen() -> None:
    """Only the forged record is passed over, not what else is known of its sink."""
    history, store, made = with_sinks()
    number = made.checkpoint_id
    store.record_sink_status(number, "a", SinkCommitStatus.FAILED)
    forged = SinkStatusRecord(number, made.commit_nonce, "a", SinkCommitStatus.COMMITTED, 1)
    history.inner.put(committed_key(number, "a"), encode_status(forged))
    newest = store.load_latest()
    assert newest is not None
    assert newest.sink_commit_statuses["a"] is SinkCommitStatus.FAILED


def test_a_status_of_a_newer_version_is_not_taken_for_none() -> None:
    """Nothing is damaged there: a newer package knows more than this one."""
    history = History()
    store = opened(history)
    made = store.save(CheckpointManifest(checkpoint_id=0, epoch=0, sink_names=("a",)))
    newer = encode_sealed({"version": 99})
    history.inner.put(committed_key(made.checkpoint_id, "a"), newer)
    with pytest.raises(UnknownVersion):
        store.load_latest()


def test_all_sinks_are_driven_where_a_forged_status_stands_in_the_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What became of the sink cannot be recorded, and is said; the next recovery drives it again."""
    history, store, made = with_sinks()
    number = made.checkpoint_id
    forged = SinkStatusRecord(number, made.commit_nonce, "a", SinkCommitStatus.COMMITTED, 1)
    history.inner.put(committed_key(number, "a"), encode_status(forged))
    driven: list[str] = []
    sinks = {"a": lambda _: driven.append("a"), "b": lambda _: driven.append("b")}
    after = store.drive_sinks(store.recover_latest_validated(), sinks)
    assert driven == ["a", "b"]
    assert after is not None
    assert after.sink_commit_statuses == {"a": SinkCommitStatus.PENDING, "b": SinkCommitStatus.COMMITTED}
    assert "what became of sink 'a' is not recorded" in caplog.text


def test_a_forged_status_does_not_make_a_restore_step_back(
    stream: MadeStream, options: dict[str, str], tmp_path: Path
) -> None:
    """The newest checkpoint is restored and claimed; nothing is rolled back."""
    newest = newest_of(stream)
    fields = json.loads((stream.table / manifest_key(newest.checkpoint_id)).read_bytes())
    assert newest.sink_names
    for sink in newest.sink_names:
        forged = SinkStatusRecord(
            newest.checkpoint_id, fields["commit_nonce"], sink, SinkCommitStatus.COMMITTED, 1
        )
        path = stream.table / committed_key(newest.checkpoint_id, sink)
        path.unlink(missing_ok=True)
        path.write_bytes(encode_status(forged))
    report = restore(str(stream.table), str(tmp_path / "fresh"), options=options)
    assert report.checkpoint_id == newest.checkpoint_id
    head = newest_of(stream)
    assert (head.kind, head.epoch) == (ManifestKind.CLAIM, newest.epoch)


def test_a_status_counts_only_under_its_own_name() -> None:
    """A genuine record of one sink, or of a failure, says nothing of another sink, or of a commit."""
    history, store, made = with_sinks()
    number = made.checkpoint_id
    store.record_sink_status(number, "a", SinkCommitStatus.COMMITTED)
    history.inner.put(committed_key(number, "b"), history.inner.get(committed_key(number, "a")))
    newest = store.load_latest()
    assert newest is not None
    assert newest.sink_commit_statuses == {"a": SinkCommitStatus.COMMITTED, "b": SinkCommitStatus.PENDING}
    assert [finding.object for finding in store.verify()] == [committed_key(number, "b")]
    history, store, made = with_sinks()
    store.record_sink_status(number, "a", SinkCommitStatus.FAILED)
    history.inner.put(committed_key(number, "a"), history.inner.get(failed_key(number, "a", 0)))
    newest = store.load_latest()
    assert newest is not None
    assert newest.sink_commit_statuses == {"a": SinkCommitStatus.FAILED, "b": SinkCommitStatus.PENDING}
    assert [finding.object for finding in store.verify()] == [committed_key(number, "a")]


def test_forged_records_at_the_next_number_do_not_stop_a_claim() -> None:
    """They wait where the claim carries its parent's records to. The claim itself succeeds."""
    history, store, made = with_sinks()
    store.record_sink_status(made.checkpoint_id, "a", SinkCommitStatus.COMMITTED)
    mac = store.authenticator()
    create_seal(history.inner, made, {"commits/0": b"v1"}, history.clock, mac=mac)
    history.inner.put(seal_key(2), encode_seal(Seal(2, "n", 0, {})))
    forged = SinkStatusRecord(2, "n", "a", SinkCommitStatus.COMMITTED, 0)
    history.inner.put(committed_key(2, "a"), encode_status(forged))
    heir = opened(history, key_ring=RING, run_id="next")
    claimed = heir.claim()
    assert claimed is not None and claimed.checkpoint_id == 2
    assert heir.claim() == claimed


def test_a_writer_without_keys_writes_no_record_of_an_encrypted_store() -> None:
    """It would stand in the way of a genuine one for ever: records are created once."""
    history, _, made = with_sinks()
    before = history.keys()
    with pytest.raises(RefusedError, match="authenticated"):
        create_seal(history.inner, made, {"commits/0": b"v1"}, history.clock)
    with pytest.raises(RefusedError, match="authenticated"):
        record_status(history.inner, made, "a", SinkCommitStatus.COMMITTED, history.clock)
    assert history.keys() == before


def test_statuses_of_an_encrypted_store_are_recorded_read_and_carried_over() -> None:
    """By whoever has the keys; a claim takes them along."""
    history, store, made = with_sinks()
    store.record_sink_status(made.checkpoint_id, "a", SinkCommitStatus.COMMITTED)
    claimed = opened(history, key_ring=RING, run_id="next").claim()
    assert claimed is not None
    newest = store.load_latest()
    assert newest is not None
    assert newest.checkpoint_id == claimed.checkpoint_id
    assert newest.sink_commit_statuses == {"a": SinkCommitStatus.COMMITTED, "b": SinkCommitStatus.PENDING}
    assert list(store.verify()) == []
