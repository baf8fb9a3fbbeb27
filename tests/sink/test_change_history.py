"""What a stream of changes reads of a history, and what it forgets."""

from __future__ import annotations

from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.sink.change_reader import FeedHistory
from pyspark_checkpoint.sink.worker_cache import OpenTable
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.meter import MeteredStore
from pyspark_checkpoint.table.feed import NOTHING_SERVED, FeedPosition
from pyspark_checkpoint.table.info import TableInfo, TableMode
from pyspark_checkpoint.table.schema import TableSchema
from tests.support.made_history import new_run

TABLE = TableInfo(operator="table", schema=TableSchema(()), mode=TableMode.APPEND)


def write_epochs(run: Run, epochs: range) -> None:
    for epoch in epochs:
        draft = CheckpointManifest(checkpoint_id=0, epoch=epoch, table=TABLE.to_json())
        run.publish(draft, run.attempt())


def feed_of(run: Run) -> tuple[FeedHistory, MeteredStore]:
    store = MeteredStore(run.store)
    return FeedHistory(OpenTable(store, run.store_id or "", None, None)), store


def test_the_newest_final_epoch_is_found_without_reading_the_history() -> None:
    """However many epochs a table keeps, a consumer that starts reads its end."""
    run = new_run(MemoryStore())
    write_epochs(run, range(60))
    feed, store = feed_of(run)
    assert feed.newest() == FeedPosition(59, 58)
    assert store.snapshot().total.requests < 10


def test_a_claim_is_no_rows_so_that_the_newest_epoch_has_one_name() -> None:
    """Whoever looks finds the checkpoint that wrote the rows, as long as it is there."""
    run = new_run(MemoryStore())
    write_epochs(run, range(3))
    heir = new_run(run.store, "run-2")
    heir.claim()
    write_epochs(heir, range(3, 4))
    assert feed_of(heir)[0].newest() == FeedPosition(3, 2)


def test_what_was_pruned_is_forgotten() -> None:
    """A consumer may run for years."""
    run = new_run(MemoryStore())
    write_epochs(run, range(30))
    feed, _ = feed_of(run)
    assert len(feed.entries(NOTHING_SERVED)) == 30
    CheckpointStore(run.store, clock=run.clock).prune(keep=2)
    assert len(feed.entries(NOTHING_SERVED)) == 2
    assert len(feed._known) <= 1 + 8
