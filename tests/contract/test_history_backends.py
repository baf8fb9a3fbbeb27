"""A whole life of a history on every backend, and two drivers that race on real servers."""

from __future__ import annotations

import threading

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import FencedError, StaleAttempt
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.store.base import ObjectStore
from tests.conftest import Place


def save_epoch(store: CheckpointStore, epoch: int) -> CheckpointManifest:
    staged = store.stage(
        [StagedItem(f"{epoch}/{n} ".encode() * 400, False, epoch, "op", n) for n in range(3)]
    )
    parts = tuple(PartitionSnapshotEntry(n, (ref,)) for n, ref in enumerate(staged.refs))
    operators = {"op": OperatorSnapshotEntry(parts)}
    return store.save(CheckpointManifest(checkpoint_id=0, epoch=epoch, operators=operators))


def test_a_history_lives_on_every_backend(place: Place) -> None:
    """Save, savepoint, prune, delete, roll back, take over, recover, verify: the same everywhere."""
    store = CheckpointStore(place.open())
    for epoch in range(6):
        save_epoch(store, epoch)
    store.savepoint("sp", 2)
    assert store.prune(keep=3) == 2
    store.delete_checkpoint(5)
    assert store.list() == [(2, 1), (4, 3), (6, 5)]
    assert store.rollback(2).checkpoint_id == 7
    other = CheckpointStore(place.open())
    other.claim()
    made = save_epoch(other, 2)
    assert made.checkpoint_id == 9
    assert other.load_partition(made, "op", 1) == [b"2/1 " * 400]
    report = other.recover_latest_validated()
    assert (report.chosen_id, report.skipped) == (9, ())
    assert list(other.verify()) == []
    assert other.cleanup_orphans(grace_ms=-60_000) == 0
    store.close()
    other.close()


def test_of_many_drivers_that_commit_at_once_one_goes_on(place: Place) -> None:
    """Each thread is a run of its own with its own connection; one lineage survives."""
    outcomes: dict[str, int] = {}
    barrier = threading.Barrier(4)

    def drive(run_id: str) -> None:
        store: ObjectStore = place.open()
        run = Run(store, run_id)
        run.claim()
        barrier.wait(60)
        done = 0
        try:
            for epoch in range(5):
                run.publish(CheckpointManifest.new(0, epoch), run.attempt())
                done += 1
        except (FencedError, StaleAttempt):
            pass  # the first commit of a run that never published is stale, any later one is fenced
        outcomes[run_id] = done
        store.close()

    threads = [threading.Thread(target=drive, args=(f"run-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(outcomes.values())[-1] == 5
    assert sum(done > 0 for done in outcomes.values()) == 1
    winner = max(outcomes, key=lambda run_id: outcomes[run_id])
    with_head = place.open()
    head = find_head(with_head)
    assert head is not None
    assert (head.number, head.manifest.run_id, head.manifest.generation) == (5, winner, 1)
    assert list(CheckpointStore(with_head, clock=SYSTEM_CLOCK).verify()) == []
    with_head.close()
