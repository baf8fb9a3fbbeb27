"""A query that starts behind its output: stopped, or the output rolled back, before its first batch."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import Unavailable
from pyspark_checkpoint.format.manifest import QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener import startup_guard
from pyspark_checkpoint.outputs.ask import OutputQuestion
from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.restorer.replace_stale import LocationRestorer
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.open import open_object_store
from tests.outputs.spark_log import SparkLog
from tests.support.made_location import MadeLocation

UID = "018bcfe5-6800-7000-8000-000000000000"


@dataclass
class Start:
    """A query at its start: its location, what its file sink has, and what became of it."""

    root: Path
    choice: str = "fail"
    hold: startup_guard.QueryHold | None = None
    stopped: list[str] = field(default_factory=list)

    def location(self, *batches: int) -> MadeLocation:
        """A location in which these batches are done."""
        return MadeLocation(self.root / "location").commit(*batches)

    def output(self, batches: int) -> SparkLog:
        """A file sink that has so many batches."""
        log = SparkLog(open_object_store(str(self.root / "out")))
        log.run(range(batches))
        return log

    def may_run(self, monkeypatch: pytest.MonkeyPatch) -> bool:
        """Start it."""

        def stop(*_: object) -> bool:
            self.stopped.append("stopped")
            return True

        monkeypatch.setattr(startup_guard, "stop_starting_query", stop)
        url, location = str(self.root / "store"), LocationSpec(str(self.root / "location"))
        guard = startup_guard.StartupGuard(
            SimpleNamespace(),  # type: ignore[arg-type]
            QueryFacts(QueryInfo(id="query"), "run", (), f"FileSink[file:{self.root / 'out'}]", "append"),
            location,
            url=url,
            stale="fail",
            options={},
            clock=SYSTEM_CLOCK,
            restorer=LocationRestorer(),
            outputs=OutputQuestion(url, self.choice, opener=open_object_store),
            hold=self.hold,
        )
        allowed = guard.allow(lambda: CheckpointStore.open(url))
        assert allowed == (not self.stopped)
        return allowed


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path)


def plan_next(made: MadeLocation, batch_id: int, *, state: str | None) -> None:
    """Spark has planned the batch, and run it if there is state: it died before ``commits``."""
    made.commit(batch_id)
    (made.path / "commits" / str(batch_id)).unlink()
    for partition in (0, 1):
        written = made.path / f"state/0/{partition}/{batch_id + 1}.delta"
        if state is None:
            written.unlink()
        else:
            written.rename(written.with_name(state))


def test_an_old_copy_of_a_location_is_not_started(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody restored it: somebody copied a directory, and there may be no history at all."""
    start.location(0, 1)
    log = start.output(4)
    assert not start.may_run(monkeypatch)
    assert "drop batches 2 to 3 by number" in caplog.text
    assert "spark.ckpt.sink=rollback" in caplog.text
    assert max(log.numbers()) == 3


def test_the_output_goes_back_while_the_query_waits(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the query runs, and what it writes is not dropped."""
    start.location(0, 1)
    log, start.choice = start.output(4), "rollback"
    with caplog.at_level(logging.WARNING):
        assert start.may_run(monkeypatch)
    assert max(log.numbers()) == 1
    assert "was rolled back to batch 1" in caplog.text


@pytest.mark.parametrize("choice", ["fail", "rollback"])
def test_a_plain_crash_is_no_reason_to_stop(
    start: Start, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    """The driver died between the sink's commit and its own: Spark repeats the batch, with its state."""
    plan_next(start.location(0, 1), 2, state="3.delta")
    log, start.choice = start.output(3), choice
    assert start.may_run(monkeypatch)
    assert max(log.numbers()) == 2


@pytest.mark.parametrize("state", [None, f"3_{UID}.delta"], ids=["state missing", "format 2"])
@pytest.mark.parametrize("choice", ["fail", "rollback"])
def test_where_spark_cannot_go_on_the_output_goes_back_by_one_batch(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    choice: str,
    state: str | None,
) -> None:
    """Stock Spark dies at every start with such a location. The message has the cure."""
    plan_next(start.location(0, 1), 2, state=state)
    log, start.choice = start.output(3), choice
    assert start.may_run(monkeypatch) == (choice == "rollback")
    assert max(log.numbers()) == (1 if choice == "rollback" else 2)
    if state is not None and choice == "fail":
        assert "CheckpointInfo length: 0" in caplog.text


@pytest.mark.parametrize(("choice", "runs"), [("fail", False), ("rollback", False), ("warn", True)])
def test_a_new_location_and_files_of_another_query(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, choice: str, runs: bool
) -> None:
    """Spark drops its first batches in silence. What is there is never rolled back for a new query."""
    log, start.choice = start.output(3), choice
    assert start.may_run(monkeypatch) == runs
    assert max(log.numbers()) == 2
    assert runs or "give it a new target too" in caplog.text


@pytest.mark.parametrize("choice", ["fail", "rollback"])
def test_an_output_that_does_not_answer_stops_no_query(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, choice: str
) -> None:
    """It is said."""

    def silent(*_: object) -> object:
        raise Unavailable("no answer")

    start.location(0, 1)
    start.choice = choice
    monkeypatch.setattr(FileSinkOutput, "position", silent)
    with caplog.at_level(logging.WARNING):
        assert start.may_run(monkeypatch)
    assert "no answer" in caplog.text


@dataclass
class Door:
    """The driver's side: whether the query waits for a roll back, and until its end."""

    waits: bool
    to_the_end: bool = True
    refused: list[str] = field(default_factory=list)

    def restores(self, _run_id: str) -> bool:
        return self.waits

    def replaces(self, _run_id: str) -> bool:
        return self.to_the_end

    def refuses(self, run_id: str) -> None:
        self.refused.append(run_id)


@pytest.mark.parametrize("door", [Door(waits=False), Door(waits=True, to_the_end=False)])
def test_nothing_goes_back_under_a_query_that_runs(
    start: Start, monkeypatch: pytest.MonkeyPatch, door: Door
) -> None:
    """It is stopped; its output stays as it is."""
    start.location(0, 1)
    log, start.choice, start.hold = start.output(4), "rollback", door
    assert not start.may_run(monkeypatch)
    assert (max(log.numbers()), door.refused) == (3, ["run"])


def test_where_the_output_is_the_query_runs(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """In step, or empty."""
    start.location(0, 1, 2)
    for batches in (0, 3):
        start.output(batches)
        assert start.may_run(monkeypatch)
    shutil.rmtree(start.root / "location")
