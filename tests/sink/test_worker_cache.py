"""What workers remember, and what they must not: removed tables, pruned heads, rows in wrong places."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.sink import worker_cache
from pyspark_checkpoint.sink.worker_cache import CACHE
from pyspark_checkpoint.store.open import open_object_store
from tests.support.made_stream import MadeStream, totals_after
from tests.support.sink_kit import Query, Worker, read_pairs

ONE, TWO = [(1, 10), (2, 20)], [(2, 21), (3, 30)]


@pytest.mark.parametrize("query_id", ["query", ""])
@pytest.mark.parametrize("with_jar", [True, False])
def test_a_table_that_was_removed_is_a_new_one_for_the_next_start(
    path: str, with_jar: bool, query_id: str
) -> None:
    """As in a notebook: Spark's workers live on and remember a table that is no more."""
    arguments = {"jar": with_jar, "keys": "k" if with_jar else "", "query_id": query_id}
    for life in range(3):
        for batch_id in range(life + 1):
            if not (batch_id and query_id):
                query = Query(path, **arguments)  # type: ignore[arg-type]
            manifest = query.epoch(batch_id, [(life, batch_id), (9, 9 + batch_id)])
        assert manifest.checkpoint_id == life + 1
        assert (life, life) in read_pairs(path)
        shutil.rmtree(path)


def test_a_table_that_is_removed_under_a_running_query_is_an_error(path: str) -> None:
    """Its earlier epochs are gone: going on would hide that."""
    query = Query(path)
    query.epoch(0, ONE)
    shutil.rmtree(path)
    with pytest.raises(FormatError, match="no _control"):
        query.epoch(1, TWO)
    assert not Path(path).exists() or not list(Path(path).glob("manifests/*"))


def test_a_worker_that_has_not_planned_for_long_plans_on_the_newest_head(path: str) -> None:
    """What it remembers has been pruned meanwhile; that no successor of it exists proves nothing."""
    query, idle, busy = Query(path, options={"retain": "1"}), Worker(), Worker()
    with idle:
        query.epoch(0, ONE)
        query.epoch(1, ONE)
    with busy:
        for batch_id in range(2, 60):
            query.epoch(batch_id, [(5, batch_id)])
    with idle:
        query.epoch(60, TWO)
    assert read_pairs(path) == [(1, 10), (2, 21), (3, 30), (5, 59)]


def test_a_process_opens_its_store_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client costs half a second; plans, tasks, commits and reads of all batches share one."""
    opened: list[str] = []

    def counting(url: str, options: Any) -> Any:
        opened.append(url)
        return open_object_store(url, options)

    monkeypatch.setattr(worker_cache, "open_object_store", counting)
    query = Query(path, options={"maxDeltas": "2"})
    for batch_id in range(5):
        query.epoch(batch_id, [(batch_id, 0), (9, batch_id)])
    assert len(read_pairs(path)) == 6
    assert opened == [path]


def test_a_worker_forgets_everything_at_once(path: str, tmp_path: Path) -> None:
    """As a fresh process: nothing is left, and the next batch finds all that it needs in the store."""
    stream = MadeStream(tmp_path / "stream")
    stream.run(2)
    Query(path, options={"checkpointLocation": "hdfs://h/x"}).epoch(0, ONE)
    assert all(cache.values() for cache in (CACHE.heads, CACHE.runs, CACHE.last_commits, CACHE.warnings))
    CACHE.forget()
    assert not any(cache.values() for cache in vars(CACHE).values())
    stream.run(1)
    assert stream.rows() == totals_after(2)


def test_a_cache_is_bounded_and_not_shared_with_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that a parent process opened must not be used by its child."""
    cache: worker_cache.ProcessCache[int] = worker_cache.ProcessCache()
    for number in range(1000):
        cache.put((number % 500,), number)
    assert len(cache.values()) == 64
    assert cache.get((499,), lambda: 0) == 999
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert cache.find((499,)) is None
    assert cache.get((499,), lambda: 7) == 7
