"""Runs of one query that follow each other: one captures at a time, none speaks for another. No Spark."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import cast

import pytest

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.listener import worker
from pyspark_checkpoint.listener.worker import ActiveRuns, CaptureStatus, QueryWorker, WorkerSettings
from pyspark_checkpoint.plugin import process as sidecar
from pyspark_checkpoint.plugin.plugin_settings import PluginSettings
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.session import CheckpointListener
from pyspark_checkpoint.spark.jvm import SideDoor
from tests.listener.test_worker import LONG, PATIENCE, Watch, watching
from tests.support.made_location import MadeLocation, contents, open_capture
from tests.support.waiting import wait_until


class Slow:
    """A capture that takes until it is let go."""

    def __init__(self, watch: Watch) -> None:
        self.go, self.reached = threading.Event(), threading.Event()
        self.capture = watch.capture.capture
        watch.capture.capture = self  # type: ignore[method-assign]

    def __call__(self, batch_id: int | None = None) -> CheckpointManifest | None:
        self.reached.set()
        assert self.go.wait(PATIENCE)
        return self.capture(batch_id)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_worker_of_an_earlier_run_gives_way_before_the_next_one_begins(
    tmp_path: Path, concurrency: int
) -> None:
    """Its capture is late: it ends first, or it would be fenced by the run that follows, or fence it."""
    gate = threading.Semaphore(concurrency)
    with watching(tmp_path, 0, gate=gate) as old:
        assert old.worker.flush(PATIENCE)
        slow = Slow(old)
        old.location.commit(1)
        old.worker.end()
        assert slow.reached.wait(PATIENCE)
        new = Watch(old.location, old.url, WorkerSettings(0.0, LONG), gate, after=old.worker)
        assert not new.begun.wait(0.3), "it has begun before the other has ended"
        slow.go.set()
        old.location.commit(2)
        assert new.worker.flush(PATIENCE)
        new.worker.finish(PATIENCE)
        assert (old.epochs(), new.epochs()[-1]) == ([0, 1], 2)
        assert old.fenced == new.fenced == []


def test_a_run_that_ended_before_its_first_capture_claims_nothing(tmp_path: Path) -> None:
    """The store was away all its life. Its query runs again; what is left of it claims nothing."""
    location = MadeLocation(tmp_path / "location").commit(0)
    url, gate = str(tmp_path / "store"), threading.Semaphore(1)
    first = Watch(location, url, WorkerSettings(0.0, LONG))
    first.worker.finish(PATIENCE)
    with gate:  # nobody gets anywhere
        old = Watch(location, url, WorkerSettings(0.0, LONG), gate, after=first.worker)
        old.worker.end()
        new = Watch(location, url, WorkerSettings(0.0, LONG), gate, after=old.worker)
        SYSTEM_CLOCK.sleep(0.1)
    assert new.worker.flush(PATIENCE)
    location.commit(1)
    assert new.worker.flush(PATIENCE)
    new.worker.finish(PATIENCE)
    assert not old.begun.is_set()
    assert (old.epochs(), new.epochs()[-1], new.fenced) == ([], 1, [])


def test_a_superseded_worker_reports_nothing_about_its_query(tmp_path: Path) -> None:
    """One that is fenced after its query was started again would stop the new run, if so configured."""
    with watching(tmp_path, 0) as old:
        assert old.worker.flush(PATIENCE)
        slow = Slow(old)
        old.location.commit(1)
        old.worker.notify()
        assert slow.reached.wait(PATIENCE)
        old.worker.give_way()
        open_capture(old.location, old.url)
        slow.go.set()
        wait_until(lambda: old.worker.is_done)
        assert old.worker.status.fenced
        assert old.fenced == []


def test_one_worker_a_run_and_one_run_a_history(tmp_path: Path) -> None:
    """A second listener steps aside; a later run follows; one that has ended is forgotten."""
    location, url = MadeLocation(tmp_path / "location").commit(0), str(tmp_path / "store")
    runs, made = ActiveRuns(), []

    def make(after: QueryWorker | None) -> QueryWorker:
        made.append(Watch(location, url, WorkerSettings(0.0, LONG), after=after))
        return made[-1].worker

    first = runs.begin(url, "one", make)
    assert first is not None
    assert runs.begin(url, first.run_id, make) is None
    second = runs.begin(url, "two", make)
    assert second is not None
    assert second.flush(PATIENCE)
    assert first.is_done
    second.finish(PATIENCE)
    assert runs.begin(url, second.run_id, make) is not None, "what has ended captures nothing"
    for watch in made:
        watch.worker.finish(PATIENCE)


def test_a_query_whose_location_is_removed_after_its_end_is_done(tmp_path: Path) -> None:
    """As Spark does with temporary ones: all of it is captured, and nothing is wrong."""
    with watching(tmp_path, 0, 1, poll_seconds=0.05) as watch:
        watch.worker.notify_described(("source",), "test", 1)
        assert watch.worker.flush(PATIENCE)
        shutil.rmtree(watch.location.path)
        watch.worker.end()
        wait_until(lambda: watch.worker.is_done)
        assert watch.worker.status.last_error is None
        assert watch.worker.has_ended


def end_after(watch: Watch, batch: int) -> None:
    """Tell a worker of its query's last batch and of its end at once, so that it sees both together."""
    with watch.worker._changed:
        watch.worker.notify_described(("source",), "test", batch)
        watch.worker.end()


def test_a_location_removed_before_the_last_capture_is_awaited_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk may come back, so not at once; but a thread for ever for each such query is no help."""
    with watching(tmp_path, 0, poll_seconds=0.05) as watch:
        assert watch.worker.flush(PATIENCE)
        watch.location.path.rename(tmp_path / "away")
        end_after(watch, 1)
        wait_until(lambda: watch.worker.status.failures > 0)
        for _ in range(3):
            assert not watch.worker.flush(PATIENCE)
        assert not watch.worker.is_done
        monkeypatch.setattr(worker, "GONE_SECONDS", 0.0)
        wait_until(lambda: watch.worker.is_done)
        assert watch.worker.status.failures == 1
        assert "what was committed after batch 0 is not captured" in (watch.worker.status.last_error or "")
        assert caplog.text.count("what was committed after batch 0 is not captured") == 1
        assert "capture failed" not in caplog.text
        assert watch.health == [None], "nobody who watches the store need look for it"


def test_a_location_that_comes_back_after_its_query_ended_is_captured(tmp_path: Path) -> None:
    """It was a disk that was away."""
    with watching(tmp_path, 0, poll_seconds=0.05) as watch:
        assert watch.worker.flush(PATIENCE)
        watch.location.path.rename(tmp_path / "away")
        end_after(watch, 1)
        wait_until(lambda: watch.worker.status.failures > 0)
        MadeLocation(tmp_path / "away").commit(1)
        (tmp_path / "away").rename(watch.location.path)
        wait_until(lambda: watch.worker.is_done)
        assert (watch.epochs(), watch.worker.status.last_error) == ([0, 1], None)


@pytest.mark.parametrize("what", ["earlier epoch", "clone", "other query"])
def test_a_location_that_was_restored_into_after_its_query_ended_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """It was removed before its last batch was captured: what is there now is not that run's."""
    with watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        watch.location.commit(1)
        assert watch.worker.flush(PATIENCE)
        shutil.rmtree(watch.location.path)
        if what == "other query":
            MadeLocation(watch.location.path, "7d2c1eaf-4c63-4d8b-8a1f-1b6e1d702f22").commit(0, 1, 2, 3)
        else:
            restore(watch.url, str(watch.location.path), epoch=0, clone=what == "clone")
        before = contents(watch.location.path)
        end_after(watch, 2)
        wait_until(lambda: watch.worker.is_done)
        assert "what was committed after batch 1 is not captured" in caplog.text
        assert "capture failed" not in caplog.text and watch.fenced == []
        assert (watch.epochs(), watch.worker.status.failures) == ([0, 1], 1)
        assert contents(watch.location.path) == before


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_restore_after_the_last_capture_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, epoch: int
) -> None:
    """The query has ended, its location was removed and restored, at its last batch or before it."""
    with watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        watch.location.commit(1)
        assert watch.worker.flush(PATIENCE)
        shutil.rmtree(watch.location.path)
        restore(watch.url, str(watch.location.path), epoch=epoch)
        end_after(watch, 1)
        wait_until(lambda: watch.worker.is_done)
        assert (watch.worker.status.last_error, watch.worker.status.failures) == (None, 0)
        assert "query" not in caplog.text


class Removed:
    """A capture during which the location is removed, as soon as it has begun to read."""

    def __init__(self, watch: Watch) -> None:
        self.capture, self.location = watch.capture.capture, watch.location.path
        watch.capture.capture = self  # type: ignore[method-assign]

    def __call__(self, batch_id: int | None = None) -> CheckpointManifest | None:
        shutil.rmtree(self.location, ignore_errors=True)
        return self.capture(batch_id)


def test_a_location_removed_during_the_last_capture_counts_as_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a notebook that stops its query and removes everything: it is said once what is lost."""
    with watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        Removed(watch)
        watch.location.commit(1)
        end_after(watch, 1)
        wait_until(lambda: watch.worker.status.failures > 0)
        for _ in range(3):
            assert not watch.worker.flush(PATIENCE)
        assert caplog.text.count("query") == 1, caplog.text
        assert "what was committed after batch 0 is not captured" in caplog.text


def test_a_worker_that_is_done_keeps_only_its_status(tmp_path: Path) -> None:
    """It is shown for long; what it knew of location and store is much."""
    with watching(tmp_path, 0) as watch:
        assert watch.worker.flush(PATIENCE)
        watch.worker.end()
        wait_until(lambda: watch.worker.is_done)
        assert watch.worker._capture is None
        assert watch.worker.status.captured_epoch == 0


class FakeListener:
    """A listener of one run, as the side process sees it."""

    def __init__(self, *, has_ended: bool, error: str | None = "the store is away") -> None:
        self.has_ended, self.is_done = has_ended, False
        self.statuses = [CaptureStatus("query", "", last_error=error)]
        self.closed = 0

    def close(self, _: float) -> None:
        self.closed += 1


def test_the_side_process_retries_a_bounded_number_of_ended_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest give up, once, with a warning; those that run, and those that are done, cost nothing."""
    monkeypatch.setattr(sidecar, "MAX_ENDED", 2)
    car = sidecar.SideCar(cast("SideDoor", None), PluginSettings("/x", "app"))
    listeners = {f"run-{number}": FakeListener(has_ended=number != 1) for number in range(5)}
    listeners["busy"] = FakeListener(has_ended=True, error=None)
    car._listeners.update(cast("dict[str, CheckpointListener]", listeners))
    car._forget_ended()
    car._forget_ended()
    assert [listener.closed for listener in listeners.values()] == [1, 0, 1, 0, 0, 0]
    assert "run run-0 has ended" in caplog.text and "busy" not in caplog.text
    for listener in listeners.values():
        listener.is_done, listener.statuses = True, []
    car._forget_ended()
    assert not car._listeners
    assert not car._given_up
