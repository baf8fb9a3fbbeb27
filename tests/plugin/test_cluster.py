"""The plugin on a standalone cluster whose workers do not see the driver's own directories."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import string
from pathlib import Path

import pytest

from pyspark_checkpoint.sparkstate.capture import NODES_HINT
from tests.plugin.cluster import can_hide, standalone
from tests.plugin.lab import (
    Submitter,
    epoch,
    expected_batches,
    found_batches,
    newest,
    wait_until,
    write_input,
)

CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.ckpt.restore": "missing",
}
EXECUTOR = b"CoarseGrainedExecutorBackend"


def executors(cluster: Path) -> list[int]:
    """The executors that the workers of a cluster have started, by the directories that they run in."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_executor = entry.name.isdigit() and EXECUTOR in (entry / "cmdline").read_bytes()
            if is_executor and str((entry / "cwd").readlink()).startswith(str(cluster)):
                found.append(int(entry.name))
    return found


@pytest.mark.timeout(600)
def test_an_application_on_a_cluster_survives_an_executor_and_its_driver(
    submitter: Submitter, home: Path
) -> None:
    """An executor is killed, then the driver; the location is deleted; the same line goes on.

    And an application whose location the nodes do not share is told so, and runs on.
    """
    write_input(home, 10)
    unshared = home / "unshared"
    write_input(unshared, 1)
    (unshared / "location").mkdir()
    with standalone(submitter, home / "cluster", [unshared / "location"]) as master:
        arguments = submitter.java_app(home, 0.3)
        with submitter.submit(home, arguments, conf=CONF, master=master) as application:
            wait_until(lambda: epoch(home) >= 1, "two checkpoints")
            victims = executors(home / "cluster")
            assert victims, "executors of this application"
            os.kill(victims[0], signal.SIGKILL)
            at = epoch(home)
            wait_until(lambda: epoch(home) >= at + 2, "checkpoints after the loss of an executor")
            application.kill()
        assert not (home / "done").exists()
        shutil.rmtree(home / "location")
        with submitter.submit(home, arguments, conf=CONF, master=master) as application:
            assert application.wait() == 0
            assert "is restored from checkpoint" in application.log
        if can_hide([unshared / "location"]):
            with submitter.submit(unshared, submitter.java_app(unshared), conf=CONF, master=master) as told:
                assert told.wait() == 0
                assert NODES_HINT in told.log
            assert epoch(unshared) == -1
    assert found_batches(home) == expected_batches(home)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_large_state_goes_up_from_executors_that_have_the_package_from_the_jar(
    submitter: Submitter, home: Path
) -> None:
    """Nothing is installed on the workers, and they do not see where the driver has the jar."""
    chance = random.Random(7)
    (home / "input").mkdir()
    lines = ("".join(chance.choices(string.printable[:90], k=1000)) for _ in range(60_000))
    (home / "input" / "000.txt").write_text("\n".join(lines))
    with standalone(submitter, home / "cluster") as master:
        conf = {**CONF, "spark.ckpt.stopTimeoutSeconds": "60", "spark.driver.memory": "2g"}
        with submitter.submit(home, submitter.java_app(home), conf=conf, master=master) as application:
            assert application.wait(400) == 0
            assert "executor_upload.py" in application.log, "a job of Spark's did it"
    found = newest(home)
    assert found is not None and found.epoch == 0
    assert found.requests.bytes > 40_000_000
