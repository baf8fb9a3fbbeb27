"""The thread that captures a query: when it works, what it does with failures, how it ends. No Spark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import FencedError, StepAside, Unavailable
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture, claim_alone
from pyspark_checkpoint.listener.worker import QueryWorker, WorkerSettings
from tests.support.made_location import MadeLocation, open_capture
from tests.support.waiting import wait_until

LONG = 3600.0
PATIENCE = 30.0


class Watch:
    """A worker on a location made by hand, and what it told."""

    def __init__(
        self,
        location: MadeLocation,
        url: str,
        settings: WorkerSettings,
        gate: threading.Semaphore | None = None,
        after: QueryWorker | None = None,
    ) -> None:
        """``after``: the worker of the run before; then the store is claimed when this one begins."""
        self.location = location
        self.url = url
        self.captured: list[CheckpointManifest] = []
        self.fenced: list[FencedError] = []
        self.health: list[str | None] = []
        self.begun = threading.Event()
        info = QueryInfo(id=location.query_id, checkpoint_location=str(location.path))
        self.facts = QueryFacts(info, SYSTEM_CLOCK.uuid7(), (), "test", "update")
        if after is None:
            self.capture = self._taken()
        self.worker = QueryWorker(
            self.facts,
            self._begin,
            settings=settings,
            clock=SYSTEM_CLOCK,
            on_captured=self.captured.append,
            on_fenced=self.fenced.append,
            on_health=self.health.append,
            describe=self._describe,
            gate=gate,
            after=after,
        )

    def _taken(self) -> QueryCapture:
        return open_capture(self.location, self.url, run_id=self.facts.run_id, instance_id="one")

    def _begin(self) -> QueryCapture:
        if not hasattr(self, "capture"):
            self.capture = self._taken()
        self.begun.set()
        return self.capture

    def _describe(self) -> tuple[tuple[str, ...], str]:
        return ("told by Spark",), "test"

    def epochs(self) -> list[int]:
        return [manifest.epoch for manifest in self.captured]


@contextmanager
def watching(
    tmp_path: Path,
    *batches: int,
    interval_seconds: float = 0.0,
    poll_seconds: float = LONG,
    gate: threading.Semaphore | None = None,
) -> Iterator[Watch]:
    location = MadeLocation(tmp_path / "location").commit(*batches)
    watch = Watch(location, str(tmp_path / "store"), WorkerSettings(interval_seconds, poll_seconds), gate)
    try:
        yield watch
    finally:
        watch.worker.finish(PATIENCE)


def test_flush_returns_when_what_was_committed_is_durable(tmp_path: Path) -> None:
    """The newest batch at the time of the call is in the store, whatever events have come."""
    with watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        watch.location.commit(1, 2)
        assert watch.worker.flush(PATIENCE)
        newest = CheckpointStore.open(watch.url).load_latest()
        assert newest is not None
        assert newest.epoch == 2


def test_no_more_queries_are_captured_at_once_than_allowed(tmp_path: Path) -> None:
    """One that waits for its turn captures all the same, when another is done."""
    gate = threading.Semaphore(1)
    with watching(tmp_path / "one", 0, gate=gate) as one, watching(tmp_path / "two", 0, gate=gate) as two:
        assert one.worker.flush(PATIENCE)
        assert two.worker.flush(PATIENCE)
        with gate:
            for watch in (one, two):
                watch.location.commit(1)
                assert not watch.worker.flush(0.2)
                assert watch.epochs() == [0]
        for watch in (one, two):
            assert watch.worker.flush(PATIENCE)
            assert watch.epochs() == [0, 1]


def test_batches_that_come_during_a_capture_are_captured_as_one(tmp_path: Path) -> None:
    """Slow uploads cost epochs in the history, never the query's time."""
    with watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        go, reached = threading.Event(), threading.Event()
        capture = watch.capture.capture

        def slow(batch_id: int | None = None) -> CheckpointManifest | None:
            reached.set()
            assert go.wait(PATIENCE)
            return capture(batch_id)

        watch.capture.capture = slow  # type: ignore[method-assign]
        watch.location.commit(1)
        watch.worker.notify()
        assert reached.wait(PATIENCE)
        for batch in (2, 3, 4):
            watch.location.commit(batch)
            watch.worker.notify()
        go.set()
        assert watch.worker.flush(PATIENCE)
        assert watch.epochs() == [0, 1, 4]


def test_a_notice_returns_at_once(tmp_path: Path) -> None:
    """It is called in Spark's listener thread, which must never wait for a store."""
    with watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        go = threading.Event()

        def wait(batch_id: int | None = None) -> None:
            go.wait(PATIENCE)

        watch.capture.capture = wait  # type: ignore[method-assign]
        watch.location.commit(1)
        began = SYSTEM_CLOCK.monotonic_seconds()
        for _ in range(1000):
            watch.worker.notify()
        assert SYSTEM_CLOCK.monotonic_seconds() - began < 2
        go.set()


def test_dropped_events_are_replaced_by_polling(tmp_path: Path) -> None:
    """No event at all comes after the first batch, and the second is captured all the same."""
    with watching(tmp_path, 0, poll_seconds=0.05) as watch:
        wait_until(lambda: watch.epochs() == [0])
        watch.location.commit(1)
        wait_until(lambda: watch.epochs() == [0, 1])


def test_an_interval_is_kept_and_flush_does_not_wait_for_it(tmp_path: Path) -> None:
    """Between two captures lies the interval, unless somebody wants to be sure now."""
    with watching(tmp_path, 0, interval_seconds=LONG) as watch:
        assert watch.worker.flush(PATIENCE)
        watch.location.commit(1)
        watch.worker.notify()
        SYSTEM_CLOCK.sleep(0.3)
        assert watch.epochs() == [0]
        assert watch.worker.flush(PATIENCE)
        assert watch.epochs() == [0, 1]


def test_a_poll_that_finds_nothing_does_not_delay_the_next_capture(tmp_path: Path) -> None:
    """The interval is between captures: what comes after a long silence is captured at once."""
    with watching(tmp_path, interval_seconds=LONG, poll_seconds=0.05) as watch:
        assert watch.worker.flush(PATIENCE)
        assert watch.epochs() == []
        watch.location.commit(0)
        wait_until(lambda: watch.epochs() == [0])


def test_a_failure_is_counted_logged_once_and_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The query never hears of it; the status shows it; when the store is back, so are captures."""
    with caplog.at_level(logging.WARNING), watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        capture = watch.capture.capture

        def fail(batch_id: int | None = None) -> CheckpointManifest | None:
            raise Unavailable("the store is away")

        watch.capture.capture = fail  # type: ignore[method-assign]
        watch.location.commit(1)
        for _ in range(3):
            assert not watch.worker.flush(PATIENCE)
        assert (watch.worker.status.failures, watch.worker.status.captured_epoch) == (3, 0)
        told = str(Unavailable("the store is away"))
        assert watch.worker.status.last_error == told
        assert caplog.text.count("the store is away") == 1
        watch.capture.capture = capture  # type: ignore[method-assign]
        assert watch.worker.flush(PATIENCE)
        status = watch.worker.status
        assert (status.captured_epoch, status.last_error) == (1, None)
        assert watch.health == [None, told, None]


def test_a_foreign_error_is_a_failure_whose_text_is_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong goes wrong in the capture alone; foreign texts may hold secrets."""
    with caplog.at_level(logging.WARNING), watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)

        def fail(batch_id: int | None = None) -> CheckpointManifest | None:
            raise ValueError("secret")

        watch.capture.capture = fail  # type: ignore[method-assign]
        watch.location.commit(1)
        assert not watch.worker.flush(PATIENCE)
        assert watch.worker.status.last_error == "ValueError"
        assert "secret" not in caplog.text


def test_a_fenced_run_stops_its_captures_for_good(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The other run's history is left alone, and whoever asked is told once."""
    with caplog.at_level(logging.ERROR), watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        other = open_capture(watch.location, watch.url)
        watch.location.commit(1)
        other.capture(1)
        watch.location.commit(2)
        assert not watch.worker.flush(PATIENCE)
        wait_until(lambda: len(watch.fenced) == 1)
        assert watch.worker.status.fenced
        assert not watch.worker.flush(1.0)
        assert len(watch.fenced) == 1
        newest = CheckpointStore.open(watch.url).load_latest()
        assert newest is not None
        assert (newest.epoch, newest.run_id) == (1, other.run.run_id)


def test_the_second_producer_of_a_run_is_known_by_its_name(tmp_path: Path) -> None:
    """The plugin beside a listener, for example; a plugin that was started again is the first."""
    with watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        first = watch.capture.run
        other = open_capture(watch.location, watch.url, run_id=first.run_id, instance_id="two")
        with pytest.raises(StepAside, match="made by one already"):
            claim_alone(other.run)
        watch.location.commit(1)
        with pytest.raises(StepAside):
            other.capture(1)
        again = open_capture(watch.location, watch.url, run_id=first.run_id, instance_id="one")
        claim_alone(again.run)
        assert again.capture(1) is not None, "the same producer, started again"
        unnamed = open_capture(watch.location, watch.url, run_id=first.run_id)
        assert unnamed.capture(1) is not None, "who has no name is nobody else"


def test_a_producer_that_came_second_ends_and_leaves_its_query_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is told that something is wrong, and a flush does not claim what others may have done."""
    gate = threading.Semaphore(1)
    with caplog.at_level(logging.WARNING), watching(tmp_path, gate=gate) as watch:
        run_id = watch.capture.run.run_id
        with gate:
            watch.location.commit(0)
            open_capture(watch.location, watch.url, run_id=run_id, instance_id="two").capture(0)
        assert not watch.worker.flush(PATIENCE)
        wait_until(lambda: watch.worker.is_done)
        assert watch.worker.status.aside and not watch.worker.status.fenced
        assert (watch.fenced, watch.epochs()) == ([], [])
        assert caplog.text.count("its checkpoints are made by two already") == 1


def test_a_query_that_ended_gets_its_last_capture(tmp_path: Path) -> None:
    """Its last batch was committed after the last event, and is in the store all the same."""
    with watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        watch.location.commit(1)
        watch.worker.finish(PATIENCE)
        assert watch.epochs() == [0, 1]


class Away:
    """A store that does not answer until it is told to."""

    def __init__(self, watch: Watch) -> None:
        self.capture = watch.capture.capture
        self.is_back = False
        watch.capture.capture = self  # type: ignore[method-assign]

    def __call__(self, batch_id: int | None = None) -> CheckpointManifest | None:
        if not self.is_back:
            raise Unavailable("the store is away")
        return self.capture(batch_id)


def test_a_query_that_ended_during_a_store_outage_is_captured_afterwards(tmp_path: Path) -> None:
    """There is no later epoch by which to try again: its last batch would never be durable."""
    with watching(tmp_path, 0, poll_seconds=0.05) as watch:
        assert watch.worker.flush(PATIENCE)
        store = Away(watch)
        watch.location.commit(1)
        watch.worker.end()
        wait_until(lambda: watch.worker.status.failures >= 3)
        assert not watch.worker.is_done
        store.is_back = True
        wait_until(lambda: watch.worker.is_done)
        assert watch.epochs() == [0, 1]
        assert watch.worker.flush(PATIENCE)


def test_closing_does_not_wait_for_a_store_outage_to_end(tmp_path: Path) -> None:
    """One more try, and the thread ends."""
    with watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        Away(watch)
        watch.location.commit(1)
        watch.worker.end()
        wait_until(lambda: watch.worker.status.failures >= 1)
        watch.worker.finish(PATIENCE)
        assert watch.worker.is_done
        assert not watch.worker.flush(1.0)


def test_spark_is_asked_for_the_sources_until_an_event_names_them(tmp_path: Path) -> None:
    """A flush may come before the first event; the checkpoint is the same as one after it."""
    with watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        watch.worker.notify_described(("told by an event",), "test", 1)
        watch.location.commit(1)
        assert watch.worker.flush(PATIENCE)
        told = [one.source_offsets["source-0"].metadata["description"] for one in watch.captured]
        assert told == ["told by Spark", "told by an event"]


def test_an_error_in_on_fenced_does_not_break_the_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopping the query may fail: the JVM may be gone."""

    def fail(_: FencedError) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.WARNING), watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        watch.fenced = None  # type: ignore[assignment]
        watch.worker._on_fenced = fail
        open_capture(watch.location, watch.url)
        watch.location.commit(1)
        assert not watch.worker.flush(PATIENCE)
        wait_until(lambda: watch.worker.is_done)
    assert "ZeroDivisionError" in caplog.text
