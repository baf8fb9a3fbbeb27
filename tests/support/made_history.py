"""Small histories for tests, made through the real protocol with fixed ids; and their copies."""

from __future__ import annotations

from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.history.control import read_control
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.replication import copy_store
from pyspark_checkpoint.history.retention import RetentionPolicy, prune_history
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.staging import Staged, StagedItem, stage
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.testing.manual_clock import ManualClock

PARTITIONS = 3
DELTA_BYTES = 700
RUN = "run-1"


def new_run(store: ObjectStore, run_id: str = RUN, cipher: Cipher | None = None) -> Run:
    return Run(store, run_id, clock=ManualClock(run_id), cipher=cipher)


def content(epoch: int, partition: int) -> bytes:
    return f"epoch {epoch} partition {partition} ".encode() * (DELTA_BYTES // 20)


def commit_epoch(run: Run, epoch: int, *, large_bytes: int = 0) -> CheckpointManifest:
    """Commit an epoch: packed deltas on top of the parent's, an inline file, and if asked a large one."""
    attempt = run.attempt()
    items = [StagedItem(content(epoch, n), True, epoch, "agg", n) for n in range(PARTITIONS)]
    items.append(StagedItem(f"offsets {epoch}".encode(), False, epoch, name=f"offsets/{epoch}"))
    if large_bytes:
        items.append(StagedItem(b"L" * large_bytes, False, epoch, "big", 0))
    staged = stage(
        run.store,
        attempt,
        items,
        store_id=run.store_id or "",
        cipher=run.cipher,
        clock=run.clock,
        max_concurrent_uploads=1,
    )
    return run.publish(draft_of(run, epoch, staged, bool(large_bytes)), attempt)


def draft_of(run: Run, epoch: int, staged: Staged, with_large: bool) -> CheckpointManifest:
    earlier = run.head.manifest.operators["agg"].partitions if run.head is not None else ()
    before = {part.partition_id: part.artifacts[-2:] for part in earlier}
    parts = tuple(
        PartitionSnapshotEntry(n, (*before.get(n, ()), staged.refs[n])) for n in range(PARTITIONS)
    )
    operators = {"agg": OperatorSnapshotEntry(parts)}
    if with_large:
        operators["big"] = OperatorSnapshotEntry((PartitionSnapshotEntry(0, (staged.refs[-1],)),))
    return CheckpointManifest(
        checkpoint_id=0,
        epoch=epoch,
        operators=operators,
        files=(staged.refs[PARTITIONS],),
        source_names=("rate",),
        source_offsets={"rate": ConnectorCheckpoint({"0": str(epoch * 10)})},
        sink_names=("table",),
        sink_epochs={"table": epoch},
        requests=staged.requests,
    )


def make_history(store: ObjectStore, epochs: int, *, first: int = 1) -> Run:
    """A store with one checkpoint an epoch."""
    run = new_run(store)
    for epoch in range(first, first + epochs):
        commit_epoch(run, epoch)
    return run


def contents(store: ObjectStore) -> dict[str, bytes]:
    """Every object of a store."""
    return {info.key: store.get(info.key) for info in store.list()}


def copy(source: ObjectStore, target: ObjectStore, **options: object) -> object:
    return copy_store(source, target, clock=ManualClock("copy"), concurrency=1, **options)  # type: ignore[arg-type]


def prune(store: ObjectStore, keep: int) -> None:
    head = find_head(store)
    assert head is not None
    prune_history(store, head, RetentionPolicy(keep), ManualClock("prune"))


def findings(store: ObjectStore) -> list[object]:
    return list(verify_store(store))


def head_number(store: ObjectStore) -> int:
    head = find_head(store)
    assert head is not None
    return head.number


def shown(store: ObjectStore) -> dict[int, bytes]:
    """Every checkpoint that a reader of the store sees, by number."""
    control = read_control(store).control
    numbers = {*range(control.floor, head_number(store) + 1), *control.pinned_numbers()}
    found = {number: find_checkpoint(store, number) for number in numbers}
    return {number: loaded.data for number, loaded in found.items() if loaded is not None}
