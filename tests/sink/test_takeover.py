"""Who may write a table: one run of one query, until another one takes it over. Without Spark."""

from __future__ import annotations

import pytest

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.errors import FencedError, RefusedError, SettingsError, StaleAttempt
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.sink.worker_cache import CACHE
from tests.support.sink_kit import Query, Worker, read_pairs, rows_from

pytestmark = pytest.mark.usefixtures("both_ways")

ONE, TWO, THREE = [(1, 10), (2, 20)], [(2, 21), (3, 30)], [(1, 11), (None, 5)]


def test_another_query_is_refused_unless_told_otherwise(path: str) -> None:
    """And when it takes over, its batch 0 is the next epoch, and the first query is refused."""
    Query(path).epoch(0, ONE)
    with pytest.raises(RefusedError, match=r"written by the streaming query query.*takeOver"):
        Query(path, query_id="other").epoch(0, TWO)
    taker = Query(path, query_id="other", options={"takeOver": "true"})
    assert taker.epoch(0, TWO).epoch == 1
    assert taker.epoch(1, THREE).epoch == 2
    CACHE.forget()
    resumed = Query(path, query_id="other", options={"takeOver": "true"})
    assert resumed.epoch(1, ONE).kind is ManifestKind.REPLACEMENT
    assert resumed.epoch(2, ONE).epoch == 3
    with pytest.raises(RefusedError, match="written by the streaming query other"):
        Query(path).epoch(1, TWO)


def test_a_second_driver_fences_the_first(path: str) -> None:
    """The first one learns at its next step who took over, and stays fenced, also in a fresh process."""
    first, second = Query(path), Query(path)
    first.epoch(0, ONE)
    plan = first.plan()
    messages = first.write(plan, 1, rows_from(TWO))
    second.epoch(1, THREE)
    with pytest.raises(FencedError, match=second.run_id):
        first.commit(messages, 1)
    CACHE.forget()
    with pytest.raises(FencedError, match=second.run_id):
        first.plan()
    second.epoch(2, ONE)
    assert read_pairs(path) == [(None, 5), (1, 10), (2, 20)]


def test_without_the_jar_the_first_commit_is_the_claim_and_fences_as_well(path: str) -> None:
    """The run is known only at the commit."""
    first, second = Query(path, jar=False, keys=""), Query(path, jar=False, keys="")
    first.epoch(0, ONE)
    late = first.write(first.plan(), 1, rows_from(TWO))
    second.epoch(1, TWO)
    with pytest.raises((FencedError, StaleAttempt)):
        first.commit(late, 1)
    CACHE.forget()
    with pytest.raises(FencedError, match=second.run_id):
        first.epoch(2, THREE)
    second.epoch(2, THREE)
    assert len(read_pairs(path)) == 6


def test_a_fenced_driver_without_the_jar_does_not_take_the_table_back(path: str) -> None:
    """Also if it plans its next batch on what the other one has committed, in a process that goes on."""
    first, second = Query(path, jar=False, keys=""), Query(path, jar=False, keys="")
    one, other = Worker(), Worker()
    with one:
        first.epoch(0, ONE)
    with other:
        second.epoch(1, TWO)
    with one, pytest.raises(FencedError, match=second.run_id):
        first.epoch(1, THREE)
    with one, pytest.raises(FencedError, match=second.run_id):
        first.epoch(2, THREE)
    with other:
        second.epoch(2, THREE)
    assert read_pairs(path) == sorted(
        [*ONE, *TWO, *THREE], key=lambda pair: (pair[0] is not None, *map(str, pair))
    )


@pytest.mark.parametrize("batch_id", [0, 1, 7])
def test_who_takes_over_without_the_jar_begins_a_new_epoch(path: str, batch_id: int) -> None:
    """Whatever the number of its batch: only the tasks know that it is another query."""
    first = Query(path, jar=False, keys="")
    first.epoch(0, ONE)
    first.epoch(1, TWO)
    CACHE.forget()
    other = {"jar": False, "keys": "", "query_id": "other"}
    with pytest.raises(RefusedError, match=r"written by the streaming query query.*takeOver"):
        Query(path, **other).epoch(batch_id, THREE)  # type: ignore[arg-type]
    CACHE.forget()
    taker = Query(path, **other, options={"takeOver": "true"})  # type: ignore[arg-type]
    assert taker.epoch(batch_id, THREE).epoch == 2
    assert taker.epoch(batch_id + 1, ONE).epoch == 3
    assert len(read_pairs(path)) == 8
    CACHE.forget()
    resumed = Query(path, **other, options={"takeOver": "true"}).epoch(batch_id + 1, TWO)  # type: ignore[arg-type]
    assert (resumed.kind, resumed.epoch) == (ManifestKind.REPLACEMENT, 3)
    assert len(read_pairs(path)) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": "v"}, "keys are"),
        ({"output_mode": "complete"}, "is in mode"),
        ({"options": {"state": "on"}}, "state=on cannot work"),
    ],
)
def test_a_start_that_is_refused_takes_nothing_over(
    path: str, options: dict[str, str], message: str
) -> None:
    """The run that writes goes on."""
    first = Query(path)
    first.epoch(0, ONE)
    before = find_head(open_object_store(path))
    with Worker(), pytest.raises((RefusedError, SettingsError), match=message):
        Query(path, **options).plan()  # type: ignore[arg-type]
    assert find_head(open_object_store(path)) == before
    first.epoch(1, TWO)
