"""A small history with everything in it, and what a reader sees of it, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_checkpoint.crypto.keyring import KeyRing, make_key_ring
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    QueryInfo,
)
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.staging import StagedItem, put_artifact
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.memory import MemoryStore
from tests.protocol.simulation.clock import SimulatedClock

OPERATOR, SINK = "agg", "out"
QUERY = QueryInfo(id="query-1", name="orders")
OLD_RING = make_key_ring({"old": b"o" * 32}, "old")
BOTH_RINGS = make_key_ring({"old": b"o" * 32, "new": b"n" * 32}, "new")
NEW_RING = make_key_ring({"new": b"n" * 32}, "new")


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that a checkpoint holds, as bytes."""

    epoch: int
    offsets: str
    partitions: Mapping[int, tuple[bytes, ...]]
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class View:
    """What a reader sees: every checkpoint, the newest one, the savepoints."""

    checkpoints: Mapping[int, Content]
    latest: int | None
    savepoints: Mapping[str, int]


def open_history(
    store: ObjectStore,
    owner: int,
    *,
    run_id: str | None = None,
    ring: KeyRing | None = None,
    keep: int | None = None,
) -> CheckpointStore:
    """A process of its own that opens the store; ``owner`` makes its ids differ from all others'."""
    return CheckpointStore(
        store,
        run_id=run_id or f"run-{owner}",
        query=QUERY,
        key_ring=ring,
        max_retained=keep,
        max_concurrent_uploads=1,
        clock=SimulatedClock(owner),
    )


def save_epoch(history: CheckpointStore, epoch: int, text: str = "") -> CheckpointManifest:
    """Commit an epoch: one partition alone in an object, two in a pack, a tiny file inline."""
    run = history.writer()
    attempt = history.attempt()
    before = {} if run.head is None else _partitions(run.head.manifest)
    rows = f"rows of epoch {epoch} {text} ".encode()
    staged = history.stage(
        [
            StagedItem(rows * 100, True, epoch, OPERATOR, 1),
            StagedItem(rows * 120, True, epoch, OPERATOR, 2),
            StagedItem(f"batch {epoch}".encode(), False, epoch, name="offsets"),
        ]
    )
    refs = {1: staged.refs[0], 2: staged.refs[1]}
    if run.cipher is None:
        refs[0] = _alone(history.store, attempt, rows, epoch)
    parts = tuple(
        PartitionSnapshotEntry(number, (*_carried(before.get(number, ()), epoch), ref))
        for number, ref in sorted(refs.items())
    )
    return history.save(
        CheckpointManifest(
            checkpoint_id=attempt.number,
            epoch=epoch,
            operators={OPERATOR: OperatorSnapshotEntry(parts)},
            files=(staged.refs[2],),
            source_names=("kafka",),
            source_offsets={"kafka": ConnectorCheckpoint({"0": str(epoch * 10)}, epoch)},
            sink_names=(SINK,),
            requests=staged.requests,
        )
    )


def _alone(store: ObjectStore, attempt: CheckpointId, data: bytes, epoch: int) -> ArtifactRef:
    path = CheckpointPaths.delta(attempt, OPERATOR, 0)
    put_artifact(store, path, data, SimulatedClock(99))
    return ArtifactRef(path, len(data), sha256_hex(data), True, epoch)


def _carried(refs: tuple[ArtifactRef, ...], epoch: int) -> tuple[ArtifactRef, ...]:
    return tuple(ref for ref in refs if ref.epoch < epoch)[-1:]


def _partitions(manifest: CheckpointManifest) -> dict[int, tuple[ArtifactRef, ...]]:
    operator = manifest.operators.get(OPERATOR)
    return {part.partition_id: part.artifacts for part in operator.partitions} if operator else {}


def make_store(epochs: int, *, ring: KeyRing | None = None) -> dict[str, bytes]:
    """A store in which one run has committed ``epochs`` epochs; the first is a savepoint."""
    store = MemoryStore()
    history = open_history(store, 1, ring=ring)
    for epoch in range(1, epochs + 1):
        saved = save_epoch(history, epoch)
        history.record_sink_status(saved.checkpoint_id, SINK, SinkCommitStatus.COMMITTED)
    if epochs:
        history.savepoint("first", 1)
    return contents(store)


def contents(store: ObjectStore) -> dict[str, bytes]:
    """Every object of a store."""
    return {info.key: store.get(info.key) for info in store.list()}


def store_of(objects: Mapping[str, bytes]) -> MemoryStore:
    """A new store with these objects."""
    store = MemoryStore(clock=SimulatedClock(0, step_ms=0))
    for key, data in objects.items():
        store.put(key, data)
    return store


def view(store: ObjectStore, ring: KeyRing | None = None) -> View:
    """Read everything, as another machine would."""
    history = open_history(store, 50, ring=ring)
    found = {number: history.load_by_id(number) for number in history.list_ids()}
    latest = history.load_latest()
    return View(
        {number: _content(history, manifest) for number, manifest in found.items() if manifest is not None},
        None if latest is None else latest.checkpoint_id,
        {point.name: point.checkpoint_id for point in history.savepoints()},
    )


def _content(history: CheckpointStore, manifest: CheckpointManifest) -> Content:
    reader = history.reader()
    reader._limit = 1  # threads cost more than they bring with a store in memory
    partitions = {
        part: tuple(reader.read_partition(manifest, OPERATOR, part))
        for part in sorted(_partitions(manifest))
    }
    files = {ref.name: reader.read(ref) for ref in manifest.files}
    return Content(manifest.epoch, str(manifest.source_offsets), partitions, files)
