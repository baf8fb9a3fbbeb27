"""A query that starts from a stale location: the driver is told first that it must not run."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.format.manifest import QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener import startup_guard
from pyspark_checkpoint.outputs.ask import OutputQuestion
from pyspark_checkpoint.restorer.replace_stale import LocationRestorer
from pyspark_checkpoint.spark.jvm import SideDoor
from pyspark_checkpoint.spark_files.location import LocationSpec
from tests.support.made_location import MadeLocation, capture


class JavaDoor:
    """The driver's side of the door; the query waits for a restore, but not until its end."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.refuses = self.refused.append

    def restores(self, _run_id: str) -> bool:
        return True

    def replaces(self, _run_id: str) -> bool:
        return False


@pytest.mark.parametrize("stale", ["fail", "restore"])
@pytest.mark.parametrize("outcome", ["stops", "does not stop", "cannot be asked"])
def test_the_driver_refuses_a_stale_query_before_anybody_tries_to_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: str, outcome: str
) -> None:
    """A stop that comes too late, or never, would let it run from the stale location."""
    made = MadeLocation(tmp_path / "whole").commit(0)
    shutil.copytree(made.path, tmp_path / "location")
    url = str(tmp_path / "store")
    capture(made.commit(1, 2), url, 0, 1, 2)

    java = JavaDoor()

    def stop(*_arguments: object) -> bool:
        assert java.refused[:1] == ["run"]
        if outcome == "cannot be asked":
            raise ConnectionError
        return outcome == "stops"

    monkeypatch.setattr(startup_guard, "stop_starting_query", stop)
    door = SideDoor.__new__(SideDoor)
    door._door = java
    start = startup_guard.StartupGuard(
        SimpleNamespace(),  # type: ignore[arg-type]
        QueryFacts(QueryInfo(id=made.query_id), "run", (), "console", "append"),
        LocationSpec(str(tmp_path / "location")),
        url=url,
        stale=stale,
        options={},
        clock=SYSTEM_CLOCK,
        restorer=LocationRestorer(),
        outputs=OutputQuestion(url),
        hold=door,
    )
    if outcome == "cannot be asked":
        with pytest.raises(ConnectionError):
            start.allow(lambda: CheckpointStore.open(url))
    else:
        assert not start.allow(lambda: CheckpointStore.open(url))
    assert set(java.refused) == {"run"}
