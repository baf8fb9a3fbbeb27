"""The listener with a session that is none: what it does from a query's start to its end. No Spark."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener import listener as listening
from pyspark_checkpoint.listener import startup_guard as starting
from pyspark_checkpoint.listener.listener import is_prune_due
from pyspark_checkpoint.registry.queries import root_url
from pyspark_checkpoint.session import CheckpointListener
from pyspark_checkpoint.spark.jvm import RunningQuery
from tests.listener.test_worker import PATIENCE
from tests.support.made_location import MadeLocation
from tests.support.waiting import wait_until

SESSION = cast(
    "SparkSession", SimpleNamespace(version="4.3.0", sparkContext=SimpleNamespace(appName="app"))
)


class Queries:
    """The queries that Spark would be running, by their ids, and those that were stopped at their start."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = str(tmp_path / "store")
        self.locations: dict[str, MadeLocation] = {}
        self.stopped: list[str] = []
        self._home = tmp_path
        monkeypatch.setattr(listening, "find_running_query", lambda _, query_id: self._running(query_id))
        monkeypatch.setattr(listening, "hadoop_settings", lambda _: {})
        monkeypatch.setattr(listening, "plugin_watches", lambda *_: False)
        monkeypatch.setattr(listening, "find_last_progress", lambda *_: None)
        monkeypatch.setattr(starting, "stop_starting_query", self._stop)

    def make(self, *batches: int) -> str:
        """A query whose location has these batches; its id."""
        query_id = str(uuid.UUID(int=len(self.locations) + 1))
        location = MadeLocation(self._home / f"location-{query_id[-4:]}", query_id, state_bytes=400)
        self.locations[query_id] = location.commit(*batches)
        return query_id

    @contextmanager
    def started(self, listener: CheckpointListener, query_id: str, run_id: str) -> Iterator[None]:
        """A run of a query, from its start to its end; what it committed is captured then."""
        listener.onQueryStarted(_event(query_id, run_id))
        yield
        listener.onQueryTerminated(_event(query_id, run_id))
        wait_until(lambda: listener.is_done)

    def _running(self, query_id: str) -> RunningQuery:
        return RunningQuery(str(self.locations[query_id].path), "update", "test", is_micro_batch=True)

    def _stop(self, _: object, query_id: str, __: object) -> bool:
        self.stopped.append(query_id)
        return True


def _event(query_id: str, run_id: str) -> Any:
    return SimpleNamespace(id=query_id, runId=run_id, name="")


@pytest.fixture
def queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queries:
    return Queries(tmp_path, monkeypatch)


def test_a_history_is_pruned_by_the_run_that_captures_it(queries: Queries) -> None:
    """From what it knows of its own checkpoints; of a run that has ended only the status is kept."""
    query_id = queries.make(0)
    listener = CheckpointListener(SESSION, queries.url, retain=4)
    with queries.started(listener, query_id, "run-1"):
        for batch in range(1, 12):
            queries.locations[query_id].commit(batch)
            assert listener.flush(PATIENCE), listener.statuses
        assert len(listener._histories) == 1
    history = CheckpointStore.open(root_url(queries.url, query_id))
    epochs = [epoch for _, epoch in history.list()]
    assert epochs[-1] == 11
    assert 4 <= len(epochs) <= 6
    assert list(history.verify()) == []
    assert (listener._histories, listener._prune_asked) == ({}, {})
    assert [status.captured_epoch for status in listener.statuses] == [11]


def test_the_location_of_before_a_rollback_is_stopped_before_its_first_batch(
    queries: Queries, caplog: pytest.LogCaptureFixture
) -> None:
    """Though it is ahead of its history, as it was before: then it may run."""
    query_id = queries.make(0)
    listener = CheckpointListener(SESSION, queries.url)
    with queries.started(listener, query_id, "run-1"):
        assert listener.flush(PATIENCE)
        queries.locations[query_id].commit(1, 2)
        assert listener.flush(PATIENCE)
    queries.locations[query_id].commit(3)
    with queries.started(listener, query_id, "run-2"):
        assert listener.flush(PATIENCE)
    assert queries.stopped == []
    CheckpointStore.open(root_url(queries.url, query_id)).rollback(1)
    with caplog.at_level(logging.ERROR), queries.started(listener, query_id, "run-3"):
        assert queries.stopped == [query_id]
    assert "rolled back to batch 0: running on would undo that" in caplog.text


def test_statuses_shows_a_bounded_number_of_ended_queries(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application may start one after the other for months."""
    monkeypatch.setattr(listening, "MAX_ENDED", 2)
    listener = CheckpointListener(SESSION, queries.url)
    made = [queries.make(0) for _ in range(5)]
    for query_id in made:
        with queries.started(listener, query_id, f"run-of-{query_id}"):
            pass
    assert [status.query_id for status in listener.statuses] == made[-3:]
    assert listener.has_ended


def test_a_closed_listener_leaves_later_queries_alone(queries: Queries) -> None:
    """Neither captured nor stopped at their start, though Spark may go on to call it."""
    first, behind, later = queries.make(0), queries.make(0), queries.make(0)
    with CheckpointListener(SESSION, queries.url) as listener:
        for query_id in (first, behind):
            with queries.started(listener, query_id, f"run-of-{query_id}"):
                pass
    CheckpointStore.open(root_url(queries.url, behind)).rollback(1)
    queries.locations[behind].commit(1)
    listener.close()
    for query_id in (behind, later):
        listener.onQueryStarted(_event(query_id, "run-2"))
    assert [status.query_id for status in listener.statuses] == [first, behind]
    assert queries.stopped == []
    assert CheckpointStore.open(root_url(queries.url, later)).load_latest() is None


def test_a_query_that_starts_while_the_listener_is_closed_is_left_alone(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start was heard before, and its history looked at meanwhile."""
    query_id = queries.make(0)
    listener = CheckpointListener(SESSION, queries.url)
    allow = starting.StartupGuard.allow

    def closed_meanwhile(guard: starting.StartupGuard, history: Any) -> bool:
        listener.close()
        return allow(guard, history)

    monkeypatch.setattr(starting.StartupGuard, "allow", closed_meanwhile)
    listener.onQueryStarted(_event(query_id, "run-1"))
    assert listener.statuses == []
    assert listener.is_done
    assert CheckpointStore.open(root_url(queries.url, query_id)).load_latest() is None


@pytest.mark.parametrize("retain", [1, 2, 3, 4, 20, 21])
@pytest.mark.parametrize("numbers_a_run", [1, 2, 3])
def test_retention_is_due_however_many_checkpoint_ids_a_run_uses(retain: int, numbers_a_run: int) -> None:
    """A scheduled query takes two a start, its claim and its batch: an even step would never be met."""
    captured = range(1, 400, numbers_a_run)
    pruned = [number for number in captured if is_prune_due(number, number - 2, retain)]
    gaps = [later - earlier for earlier, later in pairwise(pruned)]
    assert pruned
    assert max(gaps) <= 3 * max(1, retain // 2) + numbers_a_run
    running = [number for number in range(2, 400) if is_prune_due(number, number - 1, retain)]
    assert len(running) <= 400 // max(1, retain // 2), "most epochs pay nothing"
    assert min(running) > retain, "so long there is nothing to remove"
