"""The stream of changes of a table that is rolled back, or whose rollback is undone. No Spark."""

from __future__ import annotations

import pytest

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.rollback import rollback
from pyspark_checkpoint.history.savepoint import pin_checkpoint
from pyspark_checkpoint.sink.worker_cache import CACHE
from tests.sink.test_change_reader import Consumer, new_course
from tests.support.sink_kit import Query, read_pairs


def test_a_rollback_below_what_was_served_stops_the_consumer(path: str) -> None:
    """One that had not come so far continues with the new lineage."""
    query = Query(path)
    ahead, behind = Consumer(path, startingEpoch="0"), Consumer(path, startingEpoch="0")
    for batch_id in range(2):
        query.epoch(batch_id, [(batch_id, 0)])
    assert behind.batch() == [(0, 0, "upsert", 0)]
    for batch_id in range(2, 4):
        query.epoch(batch_id, [(batch_id, 0)])
    assert len(ahead.batch()) == 3
    store = open_object_store(path)
    rollback(store, 2)
    CACHE.forget()
    again = Query(path)
    for batch_id in range(2, 4):
        again.epoch(batch_id, [(batch_id, 9)])
    with pytest.raises(RefusedError, match="rolled back to epoch 1"):
        ahead.batch()
    assert behind.batch() == [(1, 0, "upsert", 1), (2, 9, "upsert", 2)]


@pytest.mark.parametrize("told", [True, False])
def test_a_consumer_may_begin_with_any_epoch(path: str, told: bool) -> None:
    """Also with one that is yet to come: it waits for that one."""
    query = Query(path)
    for batch_id in range(5):
        query.epoch(batch_id, [(batch_id, 0)])
    assert Consumer(path, startingEpoch="2").batch() == [(2, 0, "upsert", 2), (3, 0, "upsert", 3)]
    early = Consumer(path, startingEpoch="6", told_its_start=told)
    assert early.batch() == []
    for batch_id in range(5, 8):
        query.epoch(batch_id, [(batch_id, 0)])
        early.restart()
    assert early.batch() == [(6, 0, "upsert", 6)]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("start", ["snapshot", "earliest", "0"])
def test_a_rollback_to_what_was_served_serves_nothing_twice(path: str, start: str, told: bool) -> None:
    """While the newest epoch is one that the consumer has, or the one after it, there is nothing new."""
    query, consumer = Query(path), Consumer(path, startingEpoch=start, told_its_start=told)
    for batch_id in range(2):
        query.epoch(batch_id, [(batch_id, 0)])
    assert [row[3] for row in consumer.batch()] == [0]
    query.epoch(2, [(2, 0)])
    rollback(open_object_store(path), 1)
    CACHE.forget()
    assert consumer.batch() == []
    consumer.restart()
    again = Query(path)
    for batch_id in range(1, 4):
        again.epoch(batch_id, [(batch_id, 1)])
        assert [row[3] for row in consumer.batch()] == ([batch_id - 1] if batch_id > 1 else [])


@pytest.mark.parametrize(
    ("told", "restarted", "left"), [(True, True, 2), (False, True, 3), (False, False, 2)]
)
def test_a_rollback_that_was_pruned_meanwhile_is_noticed(
    path: str, told: bool, restarted: bool, left: int
) -> None:
    """The next epoch that is left follows on rows that the consumer was never given."""
    query, consumer = Query(path), Consumer(path, told_its_start=told)
    for batch_id in range(6):
        query.epoch(batch_id, [(batch_id, 0)])
    assert len(consumer.batch()) == 5
    new_course(path, 3, range(3, 5 + left))
    CheckpointStore.open(path).prune(keep=left)
    if restarted:
        consumer.restart()
    with pytest.raises(RefusedError, match=r"given epoch 4 .*was rolled back.* is pruned") as caught:
        consumer.batch()
    assert "start the consumer over" in str(caught.value)


def test_a_rollback_to_rows_that_were_replaced_stops_the_consumer(path: str) -> None:
    """The epoch has the same number, and not the rows that were served."""
    first = Query(path)
    first.epoch(0, [(0, 0)])
    first.epoch(1, [(1, 0)])
    CACHE.forget()
    again = Query(path)
    again.epoch(1, [(1, 1)])
    again.epoch(2, [(2, 0)])
    ahead, behind = Consumer(path, startingEpoch="0"), Consumer(path, startingEpoch="0")
    assert ahead.batch() == [(0, 0, "upsert", 0), (1, 1, "upsert", 1)]
    new_course(path, 2, range(2, 3))
    with pytest.raises(RefusedError, match="rolled back"):
        ahead.batch()
    assert behind.batch() == [(0, 0, "upsert", 0), (1, 0, "upsert", 1)]


def test_a_consumer_of_an_older_release_is_not_sure_of_what_was_pruned(path: str) -> None:
    """Its offset says nothing of the rows; without a hole in the numbers it goes on all the same."""
    query, consumer = Query(path), Consumer(path)
    for batch_id in range(3):
        query.epoch(batch_id, [(batch_id, 0)])
    consumer.batch()
    assert consumer.offset is not None
    del consumer.offset["lineage"]
    query.epoch(3, [(3, 0)])
    before = dict(consumer.offset)
    assert consumer.batch() == [(2, 0, "upsert", 2)]
    consumer.offset = before
    CACHE.forget()
    again = Query(path)
    again.epoch(3, [(3, 0)])
    again.epoch(4, [(4, 0)])
    assert consumer.batch() == [(2, 0, "upsert", 2), (3, 0, "upsert", 3)]
    del consumer.offset["lineage"]
    for batch_id in range(4, 6):
        CACHE.forget()
        Query(path).epoch(batch_id, [(batch_id, 0)])
    CheckpointStore.open(path).prune(keep=2)
    with pytest.raises(RefusedError, match="nothing says whether"):
        consumer.batch()


def test_a_rollback_that_is_undone_brings_back_every_epoch(path: str) -> None:
    """Also those that a consumer had not been given before; the table has their rows again."""
    query, consumer = Query(path, keys=""), Consumer(path, startingEpoch="0")
    for batch in range(2):
        query.epoch(batch, [(batch, 0)])
    assert [row[3] for row in consumer.batch()] == [0]
    for batch in range(2, 4):
        query.epoch(batch, [(batch, 0)])
    store = open_object_store(path)
    rollback(store, 1)
    rollback(store, 4)
    CACHE.forget()
    query = Query(path, keys="")
    for batch in (4, 5):
        query.epoch(batch, [(batch, 0)])
    assert len(read_pairs(path)) == 6
    assert [row[3] for row in consumer.batch()] == [1, 2, 3, 4]


def test_a_rollback_to_a_lineage_that_a_consumer_has_not_read_stops_it(path: str) -> None:
    """It was given an epoch of the second way; the table goes back to a later epoch of the first."""
    query = Query(path, keys="")
    for batch in range(4):
        query.epoch(batch, [(batch, 0)])
    store = open_object_store(path)
    pin_checkpoint(store, "first-way", 4, SYSTEM_CLOCK)
    rollback(store, 1)
    CACHE.forget()
    query, consumer = Query(path, keys=""), Consumer(path, startingEpoch="0")
    for batch in (1, 2):
        query.epoch(batch, [(batch, 7)])
    assert [row[3] for row in consumer.batch()] == [0, 1]
    rollback(store, 4)
    CACHE.forget()
    query = Query(path, keys="")
    query.epoch(4, [(4, 0)])
    with pytest.raises(RefusedError, match="does not follow on epoch 1"):
        consumer.batch()
