"""The plugin on a standalone cluster whose workers do not see the driver's own directories."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyspark_checkpoint.spark_files.inventory import NODES_HINT
from tests.integration.plugin.cluster import can_hide, standalone
from tests.integration.plugin.lab import (
    Submitter,
    epoch,
    expected_batches,
    found_batches,
    newest,
    python_without,
    write_input,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.ckpt.restore": "missing",
}
EXECUTOR = b"CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class Cluster:
    """A cluster of two workers; what an application keeps in ``unshared`` they do not see."""

    master: str
    home: Path
    unshared: Path

    def executors(self) -> list[int]:
        """The executors that the workers have started, by the directories that they run in."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                is_executor = entry.name.isdigit() and EXECUTOR in (entry / "cmdline").read_bytes()
                if is_executor and str((entry / "cwd").readlink()).startswith(str(self.home)):
                    found.append(int(entry.name))
        return found

    def logs_with(self, text: str) -> int:
        """How many executors have logged a text."""
        logs = self.home.glob("worker-*/work/app-*/*/stderr")
        return sum(text in log.read_text(errors="replace") for log in logs)


@pytest.fixture(scope="module")
def cluster(submitter: Submitter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests of this file."""
    unshared = tmp_path_factory.mktemp("unshared")
    (unshared / "location").mkdir()
    home = tmp_path_factory.mktemp("cluster")
    with standalone(submitter, home, [unshared / "location"]) as master:
        yield Cluster(master, home, unshared)


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_an_application_on_a_cluster_survives_an_executor_and_its_driver(
    submitter: Submitter, home: Path, cluster: Cluster
) -> None:
    """An executor is killed, then the driver; the location is deleted; the same line goes on."""
    write_input(home, 10)
    arguments = submitter.java_app(home, 0.3)
    with submitter.submit(home, arguments, conf=CONF, master=cluster.master) as application:
        wait_until(lambda: epoch(home) >= 1, "two checkpoints")
        victims = cluster.executors()
        assert victims, "executors of this application"
        os.kill(victims[0], signal.SIGKILL)
        at = epoch(home)
        wait_until(lambda: epoch(home) >= at + 2, "checkpoints after the loss of an executor")
        application.kill()
    assert not (home / "done").exists()
    shutil.rmtree(home / "location")
    with submitter.submit(home, arguments, conf=CONF, master=cluster.master) as application:
        assert application.wait() == 0
        assert "is restored from checkpoint" in application.log
    assert found_batches(home) == expected_batches(home)


@pytest.mark.timeout(600)
def test_a_location_that_the_nodes_do_not_share_is_told(submitter: Submitter, cluster: Cluster) -> None:
    """It runs on. Where nothing can be hidden from the nodes, there is nothing to tell."""
    home = cluster.unshared
    hides = can_hide([home / "location"])
    write_input(home, 1)
    with submitter.submit(home, submitter.java_app(home), conf=CONF, master=cluster.master) as told:
        assert told.wait() == 0
        assert (NODES_HINT in told.log) == hides
    assert epoch(home) == (-1 if hides else 0)


@pytest.mark.timeout(600)
def test_what_the_executors_python_lacks_is_said_once(
    submitter: Submitter, home: Path, cluster: Cluster
) -> None:
    """With the line that installs it and the way to ship it; checkpoints are made all the same."""
    write_input(home, 2)
    (home / "stay").touch()
    python = python_without(home / "python", "orjson", "cryptography")
    conf = {
        **CONF,
        "spark.pyspark.driver.python": str(submitter.python),
        "spark.pyspark.python": str(python),
    }
    lacking = f"on executors: the Python that Spark runs, {python}, lacks orjson cryptography"
    with submitter.submit(home, submitter.java_app(home), conf=conf, master=cluster.master) as application:
        wait_until(lambda: cluster.logs_with(lacking) == 2, "both executors")
        wait_until(lambda: lacking in application.log, "the driver")
        wait_until((home / "done").exists, "the end of the input")
        (home / "stay").unlink()
        assert application.wait() == 0
    said = [line for line in application.log.splitlines() if lacking in line]
    assert len(said) == 1 and " WARN " in said[0]
    assert f"{python} -m pip install orjson cryptography" in said[0] and "--archives" in said[0]
    assert found_batches(home) == expected_batches(home)
    assert epoch(home) == 1, "what is small goes up from the driver"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_large_state_goes_up_from_executors_that_have_the_package_from_the_jar(
    submitter: Submitter, home: Path, cluster: Cluster
) -> None:
    """Nothing is installed on the workers, and they do not see where the driver has the jar."""
    chance = random.Random(7)
    (home / "input").mkdir()
    lines = ("".join(chance.choices(string.printable[:90], k=1000)) for _ in range(60_000))
    (home / "input" / "000.txt").write_text("\n".join(lines))
    (home / "stay").touch()
    conf = {**CONF, "spark.ckpt.stopTimeoutSeconds": "60", "spark.driver.memory": "2g"}
    with submitter.submit(home, submitter.java_app(home), conf=conf, master=cluster.master) as application:
        wait_until(lambda: epoch(home) == 0, "the checkpoint", 300)
        (home / "stay").unlink()
        assert application.wait(400) == 0
        assert "executor_upload.py" in application.log, "a job of Spark's did it"
    found = newest(home)
    assert found is not None and found.epoch == 0
    assert found.requests.bytes > 40_000_000
