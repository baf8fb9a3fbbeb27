"""Inline artifacts are bounded over all that a manifest carries, not over one commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_checkpoint.crypto.keyring import make_key_ring
from pyspark_checkpoint.errors import MissingKey
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.format.pack import MAX_INLINE_TOTAL_BYTES
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.manual_clock import ManualClock


def commit_tiny(
    store: CheckpointStore, epoch: int, earlier: CheckpointManifest | None
) -> CheckpointManifest:
    """100 partitions with 200 bytes each, on top of all that came before."""
    items = [StagedItem(bytes([n]) * 200, True, epoch, "agg", n) for n in range(100)]
    refs = store.stage(items).refs
    before = earlier.operators["agg"].partitions if earlier is not None else ()
    kept = {part.partition_id: part.artifacts for part in before}
    parts = tuple(PartitionSnapshotEntry(n, (*kept.get(n, ()), refs[n])) for n in range(100))
    manifest = CheckpointManifest.new(0, epoch)
    return store.save(
        replace(manifest, operators={"agg": OperatorSnapshotEntry(parts)}, partition_count=100)
    )


def test_tiny_deltas_of_many_epochs_do_not_fill_the_manifest() -> None:
    """What no longer fits is packed; everything is read back alike."""
    store = CheckpointStore(MemoryStore(), clock=ManualClock())
    manifest = None
    for epoch in range(1, 13):
        manifest = commit_tiny(store, epoch, manifest)
        assert manifest.inline_bytes <= MAX_INLINE_TOTAL_BYTES
    assert manifest is not None
    assert manifest.inline_bytes > MAX_INLINE_TOTAL_BYTES - 100 * 200
    assert store.load_partition(manifest, "agg", 7) == [bytes([7]) * 200] * 12
    assert store.store.head(manifest_key(12)).size_bytes < 300_000


def test_reading_an_encrypted_store_without_a_ring_names_the_key() -> None:
    """Listing, loading manifests and verifying need none; only the artifact does."""
    inner = MemoryStore()
    ring = make_key_ring({"k": bytes(range(32))}, "k")
    saved = commit_tiny(CheckpointStore(inner, key_ring=ring, clock=ManualClock()), 1, None)
    keyless = CheckpointStore(inner)
    assert keyless.list() == [(1, 1)]
    assert keyless.load_latest() == saved
    assert list(keyless.verify()) == []
    assert keyless.recover_latest_validated().chosen_id == 1
    with pytest.raises(MissingKey, match="no key ring was given") as caught:
        keyless.load_partition(saved, "agg", 0)
    assert caught.value.key_id == saved.operators["agg"].partitions[0].artifacts[0].data_key_id
