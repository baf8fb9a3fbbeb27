"""``CheckpointStore`` and ``Checkpointer``: the methods of the seeds, and where they are stricter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.compat.artifact_checkpointer import ObjectStoreCheckpointer
from pyspark_checkpoint.crypto.keyring import parse_key_ring
from pyspark_checkpoint.errors import (
    FencedError,
    FormatError,
    IntegrityError,
    MissingKey,
    NotFound,
    RefusedError,
    SettingsError,
)
from pyspark_checkpoint.format.artifact import verify_integrity
from pyspark_checkpoint.format.keys import CheckpointId, manifest_key
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind
from tests.support.history_kit import History

KEYS = '{"active": "k1", "keys": {"k1": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}}'
OTHER = '{"active": "k2", "keys": {"k2": "eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg="}}'


def opened(history: History, **settings: object) -> CheckpointStore:
    return CheckpointStore(history.store, clock=history.clock, **settings)  # type: ignore[arg-type]


def test_save_load_and_list(tmp_path: Path) -> None:
    """By URL, on a real directory, and again by another process."""
    store = CheckpointStore.open(f"file://{tmp_path}/store")
    assert (store.load_latest(), store.load_by_id(1), store.list_ids(), store.list()) == (
        None,
        None,
        [],
        [],
    )
    for number in (1, 2, 3):
        store.save(CheckpointManifest.new(number, number * 10))
    again = CheckpointStore.open(f"file://{tmp_path}/store")
    latest = again.load_latest()
    assert latest is not None
    assert (latest.checkpoint_id, latest.epoch) == (3, 30)
    assert again.list() == [(1, 10), (2, 20), (3, 30)]
    assert again.load_by_id(9) is None
    assert list(again.verify()) == []
    again.close()


def test_a_number_that_is_taken_or_leaves_a_gap_is_refused() -> None:
    """Fault 3 of the seed system: "already exists" counted as success."""
    store = opened(History())
    store.save(CheckpointManifest.new(1, 1))
    for number in (1, 3):
        with pytest.raises(RefusedError, match="is not the next"):
            store.save(CheckpointManifest.new(number, 2))
    assert store.save(CheckpointManifest.new(0, 2)).checkpoint_id == 2


def test_two_stores_on_one_place_one_is_fenced() -> None:
    """Nothing of the loser is visible."""
    history = History()
    first, second = opened(history), opened(history)
    first.save(CheckpointManifest.new(1, 1))
    second.save(CheckpointManifest.new(2, 2))
    with pytest.raises(FencedError):
        first.save(CheckpointManifest.new(2, 2))
    assert second.list() == [(1, 1), (2, 2)]


def test_damaged_ones_are_in_list_ids_and_not_in_list() -> None:
    """Recovery needs to see them; users need to read them."""
    history = History()
    store = opened(history)
    for number in (1, 2, 3):
        store.save(CheckpointManifest.new(number, number))
    history.flip(manifest_key(2))
    assert store.list_ids() == [1, 2, 3]
    assert store.list() == [(1, 1), (3, 3)]
    assert not store.validate_checkpoint(2).valid
    assert store.validate_checkpoint(3).valid
    with pytest.raises(RefusedError):
        store.validate_checkpoint(7)


def test_state_is_saved_in_chunks_with_its_checkpoint_or_not_at_all() -> None:
    """It is staged under the attempt, so that a loser cannot touch the winner's: fault 4."""
    history = History()
    store = opened(history)
    chunks = [b"a" * 1000, b"", b"b" * 10]
    saved = store.save_with_state(CheckpointManifest.new(1, 1), chunks)
    assert store.load_state_data(1) == b"".join(chunks)
    verify_integrity("state", b"".join(chunks), saved.state_checksum or "")
    digest = store.save_state_data(2, [b"second"])
    assert store.load_state_data(2) is None
    assert store.save(CheckpointManifest.new(2, 2)).state_checksum == digest
    assert store.load_state_data(2) == b"second"
    assert store.load_state_data(1) == b"".join(chunks)
    store.save(CheckpointManifest.new(3, 3))
    assert store.load_state_data(3) is None
    with pytest.raises(RefusedError, match="before its manifest"):
        store.save_state_data(1, [b"too late"])
    path = next(iter(saved.paths()))
    history.flip(path, 3)
    with pytest.raises(IntegrityError):
        store.load_state_data(1)


def test_only_sink_statuses_of_a_manifest_can_be_updated() -> None:
    """As records of their own: the manifest's bytes never change."""
    history = History()
    store = opened(history)
    saved = store.save(replace(CheckpointManifest.new(1, 1), sink_names=("a", "b")))
    before = history.inner.get(manifest_key(1))
    loaded = store.load_latest()
    assert loaded is not None
    assert set(loaded.sink_commit_statuses.values()) == {SinkCommitStatus.PENDING}
    store.update_manifest(saved.with_statuses({"a": SinkCommitStatus.FAILED}))
    store.update_manifest(saved.with_statuses({"a": SinkCommitStatus.COMMITTED}))
    after = store.update_manifest(saved.with_statuses({"a": SinkCommitStatus.FAILED}))
    assert after.sink_commit_statuses == {"a": SinkCommitStatus.COMMITTED, "b": SinkCommitStatus.PENDING}
    assert history.inner.get(manifest_key(1)) == before
    with pytest.raises(RefusedError, match="immutable"):
        store.update_manifest(replace(saved, next_watermark_ms=3))
    with pytest.raises(RefusedError, match="no sink"):
        store.record_sink_status(1, "ghost", SinkCommitStatus.COMMITTED)


def test_prune_returns_how_many_it_removed() -> None:
    """And does not touch savepoints."""
    store = opened(History())
    assert store.prune(keep=3) == 0
    for number in range(1, 9):
        store.save(CheckpointManifest.new(number, number))
    store.savepoint("sp", 2)
    plan = store.plan_prune(keep=3)
    assert plan is not None
    assert store.list_ids() == list(range(1, 9))
    assert store.prune(keep=3) == len(plan.removed) == 4
    assert store.list_ids() == [2, 6, 7, 8]
    assert [point.name for point in store.savepoints()] == ["sp"]
    store.remove_savepoint("sp")
    assert store.list_ids() == [6, 7, 8]
    assert store.cleanup_orphans() == 0


def test_max_retained_prunes_after_the_commit_and_never_before() -> None:
    """Fault 5: failures do not count, and a failing prune does not fail the commit."""
    history = History()
    store = opened(history, max_retained=3)
    for number in range(1, 10):
        store.save(CheckpointManifest.new(number, number))
        assert len(store.list_ids()) == min(number, 3)
    history.plan = lambda call: (
        Fault(FaultKind.UNAVAILABLE) if call.verb == "put" and "_control" in call.key else None
    )
    assert store.save(CheckpointManifest.new(10, 10)).checkpoint_id == 10
    history.plan = lambda call: Fault(FaultKind.UNAVAILABLE) if "manifest" in call.key else None
    for _ in range(3):
        with pytest.raises(Exception, match="injected"):
            store.save(CheckpointManifest.new(11, 11))
    history.plan = lambda call: None
    assert store.list_ids() == [7, 8, 9, 10]
    store.save(CheckpointManifest.new(11, 11))
    assert store.list_ids() == [9, 10, 11]


def test_an_operator_is_staged_and_read_back() -> None:
    """By the store's own methods, in few requests."""
    history = History()
    store = opened(history)
    staged = store.stage([StagedItem(b"s" * 600, False, 1, "op", n) for n in range(5)])
    parts = tuple(PartitionSnapshotEntry(n, (ref,)) for n, ref in enumerate(staged.refs))
    store.save(CheckpointManifest(checkpoint_id=1, epoch=1, operators={"op": OperatorSnapshotEntry(parts)}))
    loaded = store.load_latest()
    assert loaded is not None
    assert store.load_partition(loaded, "op", 3) == [b"s" * 600]
    with pytest.raises(RefusedError, match="no partition"):
        store.load_partition(loaded, "op", 9)


def share_manifest(store: CheckpointStore, partitions: list[int]) -> CheckpointManifest:
    staged = store.stage([StagedItem(b"s" * 600, False, 1, "op", n) for n in partitions])
    parts = tuple(PartitionSnapshotEntry(n, (ref,)) for n, ref in zip(partitions, staged.refs, strict=True))
    return CheckpointManifest(
        checkpoint_id=0,
        epoch=1,
        vnode_count=8,
        partition_count=4,
        operators={"op": OperatorSnapshotEntry(parts)},
    )


def test_a_share_of_the_vnodes_has_real_effect() -> None:
    """Partition p of 4 owns the vnodes that are p modulo 4; the manifest says what it covers."""
    mine = opened(History(), vnode_count=8, vnodes={1, 5, 6}, instance_id="i-1")
    with pytest.raises(RefusedError, match="partition 0"):
        mine.save(share_manifest(mine, [0, 1]))
    history = History()
    mine = opened(history, vnode_count=8, vnodes={1, 5, 6}, instance_id="i-1")
    saved = mine.save(share_manifest(mine, [1, 2]))
    assert (saved.vnodes, saved.instance_id) == ((1, 5, 6), "i-1")
    assert mine.recover_latest_validated().warnings == ()
    whole = opened(history, vnode_count=8).recover_latest_validated()
    assert "does not cover 5 of the vnodes" in whole.report
    with pytest.raises(SettingsError):
        opened(history, vnode_count=8, vnodes={8})


def test_a_share_reads_none_of_the_others_partitions() -> None:
    """A store opened for a share of a whole history sees, verifies and loads its own only."""
    history = History()
    whole = opened(history, vnode_count=8)
    saved = whole.save(share_manifest(whole, [0, 1, 2, 3]))
    mine = opened(history, vnode_count=8, vnodes={2, 6})
    loaded = mine.load_latest()
    assert loaded is not None
    assert [part.partition_id for part in loaded.operators["op"].partitions] == [2]
    assert mine.load_partition(saved, "op", 2) == [b"s" * 600]
    with pytest.raises(RefusedError):
        mine.load_partition(saved, "op", 1)
    assert mine.recover_latest_validated().chosen_id == 1


def test_another_vnode_count_is_refused_when_saving_and_reported_when_loading() -> None:
    """Keys would not map to the same partitions."""
    history = History()
    store = opened(history)
    with pytest.raises(RefusedError, match="vnodes"):
        store.save(CheckpointManifest.new_with_vnode_count(1, 1, 128))
    other = store.with_vnode_count(128)
    assert other.vnode_count == 128
    other.save(CheckpointManifest.new_with_vnode_count(1, 1, 128))
    assert opened(history).recover_latest_validated().warnings


def test_an_encrypted_store_is_written_and_read_with_its_key_ring(tmp_path: Path) -> None:
    """State and partitions; without the ring, or with another, a clear error that names the key."""
    key_file = tmp_path / "keys.json"
    key_file.write_text(KEYS)
    key_file.chmod(0o600)
    url = f"file://{tmp_path}/store"
    store = CheckpointStore.open(url, {"encryptionKeyFile": str(key_file)})
    staged = store.stage([StagedItem(b"secret" * 200, False, 1, "op", 0)])
    parts = (PartitionSnapshotEntry(0, staged.refs),)
    manifest = CheckpointManifest(checkpoint_id=1, epoch=1, operators={"op": OperatorSnapshotEntry(parts)})
    store.save_with_state(manifest, [b"secret state"])
    blobs = b"".join(path.read_bytes() for path in tmp_path.glob("store/**/*") if path.is_file())
    assert b"secret" not in blobs
    again = CheckpointStore.open(url, {"encryptionKeyFile": str(key_file)})
    loaded = again.load_latest()
    assert loaded is not None
    assert again.load_partition(loaded, "op", 0) == [b"secret" * 200]
    assert again.load_state_data(1) == b"secret state"
    assert again.recover_latest_validated().chosen_id == 1
    blind = CheckpointStore.open(url)
    assert list(blind.verify()) == []
    with pytest.raises(MissingKey, match="encrypted"):
        blind.load_partition(loaded, "op", 0)
    with pytest.raises(MissingKey, match="k1"):
        blind.save(CheckpointManifest.new(2, 2))
    wrong = CheckpointStore.open(url, key_ring=parse_key_ring(OTHER))
    with pytest.raises(MissingKey, match="k1"):
        wrong.load_latest()


def test_a_plain_store_stays_plain() -> None:
    """A key ring given later is refused, so that nobody has to trust half of a history."""
    history = History()
    opened(history).save(CheckpointManifest.new(1, 1))
    with pytest.raises(RefusedError, match="stays plain"):
        opened(history, key_ring=parse_key_ring(KEYS)).save(CheckpointManifest.new(2, 2))
    with pytest.raises(RefusedError, match="stays plain"):
        opened(history, key_ring=parse_key_ring(KEYS)).load_latest()


def test_reading_a_plain_store_costs_no_request_for_keys() -> None:
    """Four for the newest checkpoint, two for one by number."""
    history = History()
    opened(history).save(CheckpointManifest.new(1, 1))
    reader = opened(history)
    assert len(history.calls(reader.load_latest)) == 4
    assert len(history.calls(lambda: reader.load_by_id(1))) == 2


# --- the checkpointer of the seeds ---------------------------------------------------------------


def checkpointer(history: History, **settings: object) -> ObjectStoreCheckpointer:
    return ObjectStoreCheckpointer(history.store, clock=history.clock, **settings)  # type: ignore[arg-type]


def test_the_checkpointer_saves_partitions_and_returns_all_of_them() -> None:
    """Far more than its concurrency: fault 1."""
    history = History()
    point = checkpointer(history, max_concurrent_uploads=3)
    attempt = point.new_id()
    snapshots = [(f"op{n % 2}", n, n % 3 == 0, bytes([n]) * n) for n in range(40)]
    entries = point.save_partitions_concurrent(attempt, snapshots, epoch=5)
    assert [(op, entry.partition_id) for op, entry in entries] == [(s[0], s[1]) for s in snapshots]
    for (_, entry), snapshot in zip(entries, snapshots, strict=True):
        assert point.load_artifact(entry.artifacts[0]) == snapshot[3]
    with pytest.raises(RefusedError, match="twice"):
        point.save_partitions(attempt, [snapshots[0], snapshots[0]])
    operators = {
        op: OperatorSnapshotEntry(tuple(entry for name, entry in entries if name == op))
        for op in ("op0", "op1")
    }
    saved = point.save_manifest(CheckpointManifest(checkpoint_id=0, epoch=5, operators=operators), attempt)
    assert point.load_manifest(attempt) == point.load_manifest(1) == saved
    assert point.read_latest() == attempt
    assert saved.operators["op0"].total_bytes == sum(s[1] for s in snapshots if s[0] == "op0")


def test_the_checkpointer_lists_and_deletes() -> None:
    """Oldest first; the newest cannot be deleted."""
    history = History()
    point = checkpointer(history)
    assert (point.read_latest(), point.list_checkpoints()) == (None, [])
    ids = []
    for epoch in range(3):
        attempt = point.new_id()
        digest = point.save_delta(attempt, "op", 0, f"delta {epoch}".encode())
        path = point.paths.delta(attempt, "op", 0)
        assert point.load_artifact(path, digest) == f"delta {epoch}".encode()
        point.save_manifest(CheckpointManifest.new(0, epoch), attempt)
        point.update_latest(attempt)
        ids.append(attempt)
    assert point.list_checkpoints() == ids
    point.delete_checkpoint(ids[1])
    assert point.list_checkpoints() == [ids[0], ids[2]]
    with pytest.raises(RefusedError, match="newest"):
        point.delete_checkpoint(ids[2])
    with pytest.raises(NotFound):
        point.load_manifest(ids[1])
    with pytest.raises(NotFound):
        point.load_manifest(CheckpointId(1, ids[2].uuid))


def test_artifacts_by_path_need_a_digest_and_stay_in_the_store() -> None:
    """Loading is always verified, and a path cannot escape."""
    history = History()
    point = checkpointer(history)
    attempt = point.new_id()
    digest = point.save_snapshot(attempt, "op", 0, b"data")
    path = point.paths.snapshot(attempt, "op", 0)
    with pytest.raises(RefusedError, match="digest"):
        point.load_artifact(path)
    with pytest.raises(IntegrityError):
        point.load_artifact(path, "0" * 64)
    with pytest.raises(FormatError):
        point.load_artifact(f"checkpoints/{attempt}/../../_control", digest)


@pytest.mark.parametrize("operator", ["a/b", "..", "", "x" * 300, "nul\0", "trailing."])
def test_operator_names_that_no_store_could_hold_are_refused(operator: str) -> None:
    """Before anything is written."""
    history = History()
    point = checkpointer(history)
    attempt = point.new_id()
    with pytest.raises(RefusedError):
        point.save_snapshot(attempt, operator, 0, b"data")
    inline = CheckpointManifest(checkpoint_id=0, epoch=1, operators={operator: OperatorSnapshotEntry()})
    sink = replace(CheckpointManifest.new(0, 1), sink_names=(operator,))
    for bad in (inline, sink, replace(CheckpointManifest.new(0, 1), share=operator)):
        with pytest.raises(RefusedError):
            point.save_manifest(bad, attempt)
    assert history.keys("checkpoints/") == history.keys("manifests/") == []
