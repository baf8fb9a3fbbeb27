"""verify finds every flipped byte and names its object; recovery walks back and says why."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from pyspark_checkpoint.crypto.keyring import parse_key_ring
from pyspark_checkpoint.errors import FormatError, Unavailable
from pyspark_checkpoint.format.keys import LATEST_KEY, manifest_key
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.format.manifest_codec import encode_manifest
from pyspark_checkpoint.format.pack import PackBounds
from pyspark_checkpoint.format.records import SinkCommitStatus, encode_latest
from pyspark_checkpoint.history import verify
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.control import ensure_control
from pyspark_checkpoint.history.deletion import delete_checkpoint
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.recovery import Expected
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.savepoint import add_savepoint
from pyspark_checkpoint.history.seal import create_seal
from pyspark_checkpoint.history.sink_status import record_status
from pyspark_checkpoint.history.staging import StagedItem, stage
from pyspark_checkpoint.history.store_cipher import StoreCipher
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind
from tests.support.history_kit import History, commit, history_of

RING = parse_key_ring('{"active": "k1", "keys": {"k1": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}}')
BOUNDS = PackBounds(16, 100, 4096, 200)


def rich_history(*, encrypted: bool, epochs: int = 4) -> History:
    """Inline, packed and lone artifacts, seals, statuses, a savepoint, a tombstone, a pruned part."""
    history = History()
    store_id = ensure_control(history.inner, history.clock).control.store_id
    cipher = StoreCipher(history.inner, store_id, RING, history.clock) if encrypted else None
    run = Run(history.inner, "run-a", clock=history.clock, cipher=cipher)
    for epoch in range(epochs):
        attempt = run.attempt()
        work = [
            StagedItem(bytes([65 + n]) * size, n > 0, epoch, operator="op", partition=n)
            for n, size in enumerate((8, 50, 60, 300))
        ]
        staged = stage(
            history.inner,
            attempt,
            work,
            store_id=store_id,
            cipher=cipher,
            bounds=BOUNDS,
            clock=history.clock,
        )
        parts = tuple(PartitionSnapshotEntry(n, (ref,)) for n, ref in enumerate(staged.refs))
        made = run.publish(
            CheckpointManifest(
                checkpoint_id=0,
                epoch=epoch,
                operators={"op": OperatorSnapshotEntry(parts)},
                sink_names=("out",),
                requests=staged.requests,
            ),
            attempt,
        )
        create_seal(history.inner, made, {"commits": b"v1"}, history.clock, mac=run.mac)
        record_status(history.inner, made, "out", SinkCommitStatus.FAILED, history.clock, mac=run.mac)
    record_status(history.inner, made, "out", SinkCommitStatus.COMMITTED, history.clock, mac=run.mac)
    add_savepoint(history.inner, "sp", history.clock, number=1)
    if epochs < 4:
        return history
    delete_checkpoint(history.inner, 3, history.clock, mac=run.mac)
    history.prune(2)
    return history


@pytest.mark.parametrize("encrypted", [False, True])
def test_every_flipped_byte_is_found_and_its_object_named(encrypted: bool) -> None:
    """Without any key: each byte of each object of a small checkpoint in turn."""
    history = rich_history(encrypted=encrypted, epochs=1)
    assert list(verify_store(history.inner, max_concurrent_reads=1)) == []
    flips = 0
    for key in history.keys():  # noqa: SIM118 - it is not a dictionary
        good = history.inner.get(key)
        assert good
        for at in range(0, len(good), 7 if encrypted else 1):
            bad = bytearray(good)
            bad[at] ^= 0x04
            history.inner.put(key, bytes(bad))
            findings = list(verify_store(history.inner, max_concurrent_reads=1))
            assert any(key in (found.object, *found.problem.split()) for found in findings), (key, at)
            flips += 1
        history.inner.put(key, good)
    assert flips > 500


@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "longer"])
def test_every_missing_truncated_empty_or_longer_object_is_found(damage: str) -> None:
    """Of every kind but the pointer, whose absence loses nothing."""
    history = rich_history(encrypted=False)
    for key in history.keys():  # noqa: SIM118 - it is not a dictionary
        if damage == "missing" and ("seal" in key or ".out." in key or key == LATEST_KEY):
            continue
        good = history.inner.get(key)
        bad = {"truncated": good[:-1], "empty": b"", "longer": good + b"x"}.get(damage)
        if bad is None:
            history.inner.delete([key])
        else:
            history.inner.put(key, bad)
        assert list(verify_store(history.inner, max_concurrent_reads=1)), key
        history.inner.put(key, good)
    assert list(verify_store(history.inner)) == []


def test_large_packs_are_checked_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """With bounded memory, and the same findings."""
    monkeypatch.setattr(verify, "_WHOLE_BYTES", 10)
    history = rich_history(encrypted=False)
    pack = next(key for key in history.keys("checkpoints/") if key.endswith(".pack"))
    good = history.inner.get(pack)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x04
        history.inner.put(pack, bytes(bad))
        assert [found for found in verify_store(history.inner) if found.object == pack], at


def test_a_history_that_was_rewritten_consistently_is_found_by_its_chain() -> None:
    """Every digest is right, but the next manifest names another parent."""
    history, _ = history_of(3)
    loaded = find_checkpoint(history.inner, 2)
    assert loaded is not None
    forged = encode_manifest(replace(loaded.manifest, next_watermark_ms=7))
    history.inner.put(manifest_key(2), forged)
    findings = list(verify_store(history.inner))
    assert [(found.object, found.checkpoint_id) for found in findings] == [(manifest_key(3), 3)]
    assert "parent" in str(findings[0])


def test_a_forged_manifest_is_found_with_the_key() -> None:
    """The newest one has no successor that would name it; its MAC does."""
    history = rich_history(encrypted=True)
    store_id = history.control().store_id
    loaded = find_checkpoint(history.inner, 4)
    assert loaded is not None
    history.inner.put(manifest_key(4), encode_manifest(replace(loaded.manifest, next_watermark_ms=7)))
    cipher = StoreCipher(history.inner, store_id, RING, history.clock)
    findings = list(verify_store(history.inner, mac=cipher.mac))
    assert manifest_key(4) in [found.object for found in findings]


def test_strange_objects_are_named() -> None:
    """What this package does not write does not belong here."""
    history, _ = history_of(2)
    history.inner.put("notes.txt", b"hello")
    history.inner.put(manifest_key(9), history.inner.get(manifest_key(2)))
    assert {found.object for found in verify_store(history.inner)} == {"notes.txt", manifest_key(9)}


def test_garbage_and_a_stale_pointer_are_no_findings() -> None:
    """They are expected, and harmless."""
    history, run = history_of(3)
    run.store.put(f"checkpoints/{run.attempt()}/file-00000.bin", b"being uploaded")
    history.inner.put(LATEST_KEY, encode_latest(1))
    assert list(verify_store(history.inner)) == []
    assert list(verify_store(History().inner)) == []


def test_an_unreachable_store_is_an_error_and_not_a_clean_report() -> None:
    """Nor a report full of missing objects."""
    history, _ = history_of(2)
    history.plan = lambda call: Fault(FaultKind.UNAVAILABLE) if "checkpoints/" in call.key else None
    with pytest.raises(Unavailable):
        list(verify_store(history.store))


def test_recovery_walks_back_to_the_first_good_one_and_reports(caplog: pytest.LogCaptureFixture) -> None:
    """A flipped artifact, a missing one, an unreadable manifest: three steps back, three reasons."""
    history, run = history_of(2, depth=0)
    made = [commit(run, epoch, depth=0) for epoch in (2, 3, 4)]
    history.flip(next(iter(made[0].paths())), 3)
    history.inner.delete(made[1].paths())
    history.flip(manifest_key(5))
    with caplog.at_level(logging.WARNING):
        report = CheckpointStore(history.inner).recover_latest_validated()
    assert report.chosen_id == 2
    assert [result.checkpoint_id for result in report.skipped] == [5, 4, 3]
    assert report.report.count("skipped checkpoint") == 3
    assert "skipped checkpoint 4" in caplog.text
    assert "is missing" in report.report


def test_recovery_with_nothing_good_is_an_error_and_never_a_fresh_start() -> None:
    """Fault 6 of the seed system."""
    history, _ = history_of(2)
    for number in (1, 2):
        history.flip(manifest_key(number))
    with pytest.raises(FormatError, match="none of 2"):
        CheckpointStore(history.inner).recover_latest_validated()
    assert CheckpointStore(History().inner).recover_latest_validated().manifest is None


def test_recovery_reaches_back_to_savepoints_below_the_floor() -> None:
    """They are verified like any other."""
    history, _ = history_of(6, depth=0)
    add_savepoint(history.inner, "sp", history.clock, number=2)
    history.prune(1)
    history.flip(manifest_key(6))
    assert CheckpointStore(history.inner).recover_latest_validated().chosen_id == 2


def test_recovery_lists_sinks_to_be_driven_again() -> None:
    """Pending and failed ones: fault 8 of the seed system."""
    history, run = history_of(1)
    made = commit(run, 1, sink_names=("done", "failed", "pending"))
    record_status(history.inner, made, "done", SinkCommitStatus.COMMITTED, history.clock)
    record_status(history.inner, made, "failed", SinkCommitStatus.FAILED, history.clock, message="no disk")
    report = CheckpointStore(history.inner).recover_latest_validated()
    assert (report.pending_sinks, report.failed_sinks) == (("pending",), ("failed",))
    assert report.sinks_to_drive == ("failed", "pending")
    assert report.manifest is not None
    assert report.manifest.sink_commit_statuses["done"] is SinkCommitStatus.COMMITTED


def test_recovery_warns_of_what_changed_since() -> None:
    """Topology, pipeline hash, vnode count: fault 13 of the seed system."""
    history, run = history_of(1)
    commit(run, 1, source_names=("a", "b"), source_offsets={}, sink_names=("x",), pipeline_hash=1)
    store = CheckpointStore(history.inner).with_vnode_count(128)
    expected = Expected(source_names=("b", "c"), sink_names=("x",), pipeline_hash=2)
    warnings = store.recover_latest_validated(expected).warnings
    assert [w for w in warnings if "'c' was added" in w]
    assert [w for w in warnings if "'a' was removed" in w]
    assert [w for w in warnings if "pipeline has changed" in w]
    assert [w for w in warnings if "256 vnodes, the runtime 128" in w]
    same = Expected(source_names=("a", "b"), sink_names=("x",), pipeline_hash=1)
    assert CheckpointStore(history.inner).recover_latest_validated(same).warnings == ()
