"""Whether a location fits its history, and how it is opened. No Spark."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.capture.location_status import LocationStatus
from pyspark_checkpoint.format.manifest import ConnectorCheckpoint
from pyspark_checkpoint.spark_files.location import LocationSpec
from tests.support.made_location import MadeLocation, capture

DIVERGED = "checkpoint location has diverged: offsets of batch 2 differ from checkpoint {}"


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1, 2)


def status(path: Path) -> LocationStatus:
    return LocationStatus.of(LocationSpec(str(path)).open())


def test_a_location_may_be_ahead_of_its_history_and_not_behind(made: MadeLocation, tmp_path: Path) -> None:
    """Also one that is empty; and whatever it comes to later, what it was at the start counts."""
    first, second, third = capture(made, str(tmp_path / "store"), 0, 1, 2)
    now = status(made.path)
    assert now.find_problem(None, "run") is None
    assert now.find_problem(first, "run") is None
    assert now.find_problem(third, "run") is None
    (made.path / "commits/2").unlink()
    behind = status(made.path)
    assert behind.find_problem(second, "run") is None
    assert "at batch 1, its history at 2" in (behind.find_problem(third, "run") or "")
    made.commit(2, 3, 4)
    assert "at batch 1, its history at 2" in (behind.find_problem(third, "run") or "")
    assert "at batch None" in (status(tmp_path / "none").find_problem(first, "run") or "")


def test_a_run_is_never_behind_itself(made: MadeLocation, tmp_path: Path) -> None:
    """A listener that was started again in the middle of a run finds what the run has captured."""
    (head,) = capture(made, str(tmp_path / "store"), 2)
    (made.path / "commits/2").unlink()
    assert status(made.path).find_problem(head, head.run_id) is None


def test_a_location_whose_offsets_differ_has_diverged(made: MadeLocation, tmp_path: Path) -> None:
    """An old disk comes back: it is as far as the history, which has gone on elsewhere."""
    shutil.copytree(made.path, tmp_path / "old")
    head = capture(made, str(tmp_path / "store"), 2)[0]
    other = tmp_path / "old" / "offsets/2"
    lines = other.read_text().split("\n")
    other.write_text("\n".join([*lines[:2], json.dumps({"topic": {"0": 99}})]))
    assert status(made.path).find_problem(head, "run") is None
    assert status(tmp_path / "old").find_problem(head, "run") == DIVERGED.format(head.checkpoint_id)
    other.unlink()
    MadeLocation(tmp_path / "old").commit(3)
    assert status(tmp_path / "old").find_problem(head, "run") is None, "purged: nothing can be said"


def test_sources_without_an_offset_are_compared_too(made: MadeLocation, tmp_path: Path) -> None:
    """Spark writes a dash for them."""
    head = capture(made, str(tmp_path / "store"), 2)[0]
    waiting = ConnectorCheckpoint({}, 2)
    two = replace(head, source_offsets={**head.source_offsets, "source-1": waiting})
    path = made.path / "offsets/2"
    assert status(made.path).find_problem(two, "run") == DIVERGED.format(head.checkpoint_id)
    path.write_text(path.read_text() + "\n-")
    assert status(made.path).find_problem(two, "run") is None
