"""``spark.ckpt.sink=rollback``, killed while it takes a file sink back: the next try finishes it, exactly.

By the automatic restore before Spark is there, and by the side process while a query waits to start.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pyspark_checkpoint import restore
from tests.integration.plugin.test_durable import Life, app_home, produced, written
from tests.support.kills import kill_environment, kills_left

__all__ = ["app_home"]
pytestmark = [pytest.mark.spark, pytest.mark.crash]
AUTO_RESTORE = "pyspark_checkpoint.plugin.auto_restore"
SIDE_PROCESS = "pyspark_checkpoint.plugin.process"


def run_ahead(home: Path) -> None:
    """A life whose output has batches that no checkpoint has; then its machine is lost."""
    life = Life(home, "async", 1, interval_seconds=3600)
    life.wait(8)
    life.lose_machine()


def begin(home: Path, env: dict[str, str] | None = None) -> Life:
    """A life that takes the output back; it plans other batches than the first one."""
    return Life(home, "async", 3, env=env, sink="rollback")


@pytest.mark.timeout(600)
def test_an_automatic_restore_killed_while_an_output_goes_back_is_finished_by_the_next_start(
    app_home: Path,
) -> None:
    """The application does not start without it, and its location does not look whole."""
    run_ahead(app_home)
    note = app_home / "steps.json"
    env = kill_environment(AUTO_RESTORE, app_home / "output", (2, 5, 9), note)
    for left in (2, 1, 0):
        life = begin(app_home, env)
        assert life.end() != 0
        assert kills_left(note) == left, life.log.read_text()[-4000:]
        assert not (app_home / "location" / "commits").exists()
        assert (app_home / "location" / "_ckpt_restoring.json").exists()
    last = begin(app_home, env)
    assert last.end() == 0, last.log.read_text()[-4000:]
    assert written(app_home) == produced(app_home)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["process", "machine"])
def test_a_side_process_killed_while_an_output_goes_back_is_finished_by_the_next_start(
    app_home: Path, victim: str
) -> None:
    """Somebody has put the location back alone. Its query waits, and is stopped; or the machine is lost."""
    run_ahead(app_home)
    restore(str(app_home / "store"), str(app_home / "location"), query="durable", sink="warn")
    note = app_home / "steps.json"
    life = begin(app_home, kill_environment(SIDE_PROCESS, app_home / "output", (2, 4), note, victim))
    for left in (1, 0):
        assert life.end() == (-signal.SIGKILL if victim == "machine" else 0)
        assert kills_left(note) == left, life.log.read_text()[-4000:]
        assert victim == "machine" or "or took the output back" in life.log.read_text()
        life = begin(app_home, life.env)
    assert life.end() == 0, life.log.read_text()[-4000:]
    assert written(app_home) == produced(app_home)
