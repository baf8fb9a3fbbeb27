"""The whole machine lost at random moments, with real tables: driver, side process and every location.

With ``durability=batch`` every row is in every table once, whether its query has state or not. The store is
an S3 server with 20 ms a request. A table that must go back by a batch does so by the automatic restore.
Rows are compared with what was produced. Files and ckpt-sink: ``tests/integration/plugin/test_durable.py``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.errors import CheckpointError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import resolve_root
from tests.conftest import fresh_place
from tests.ecosystem.durable_tables import FIRST_TIME, QUERIES, expected, numbers_of
from tests.ecosystem.kit import PYTHON, ROOT, driver_jars, environment, set_up
from tests.support.kills import kill_environment, kills_left
from tests.support.servers.proxy import FaultProxy
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.server]
FILES = 10
LIVES = (1, 3, 2, 2)
"""How many files a batch of each life reads, so that a batch that is planned anew is another one."""
SECONDS = 400.0
CREDENTIALS = ("accessKey", "secretKey")


class Machine:
    """What survives a loss: the store and the outputs. Each life of the application is on a new disk."""

    def __init__(
        self,
        home: Path,
        url: str,
        options: Mapping[str, str],
        queries: Sequence[str] = QUERIES,
        count: int = FILES,
        **settings: object,
    ) -> None:
        self._home = home
        self._queries = queries
        self._log = home / "driver.log"
        ours = {"url": url, "restore": "missing", **settings}
        self._conf = {
            "spark.plugins": "io.github.pysparkcheckpoint.CheckpointPlugin",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.ui.showConsoleProgress": "false",
            **{f"spark.ckpt.{name}": str(value) for name, value in ours.items()},
            **{
                f"spark.ckpt.{'secret' if name in CREDENTIALS else 'option'}.{name}": value
                for name, value in options.items()
            },
        }
        (home / "input").mkdir()
        for file in range(count):
            path = home / "input" / f"{file:03d}.json"
            path.write_text("".join(f'{{"n": {n}}}\n' for n in numbers_of(file)))
            os.utime(path, (FIRST_TIME + file, FIRST_TIME + file))

    def planned(self) -> dict[str, int]:
        """The newest batch that each query has planned on its disk."""
        logs = {query: self._home / "locations" / query / "offsets" for query in self._queries}
        found = {query: [int(path.name) for path in log.glob("[0-9]*")] for query, log in logs.items()}
        return {query: max(batches, default=-1) for query, batches in found.items()}

    def live_until(
        self, files: int, is_over: Callable[[dict[str, int]], bool], more_seconds: float
    ) -> None:
        """Run until enough is planned, and a moment longer; then its processes and its disk are lost."""
        life = self.begin(files)
        try:
            wait_until(lambda: is_over(self.planned()) or life.poll() is not None, what="batches")
            time.sleep(more_seconds)
            assert life.poll() in (None, 0), self.problems()
        finally:
            os.killpg(life.pid, signal.SIGKILL)
            life.wait(30)
        shutil.rmtree(self._home / "locations")

    def live(self, files: int) -> dict[str, dict[str, Any]]:
        """Run until all files are read; what every output then has."""
        life = self.begin(files)
        try:
            status = life.wait(SECONDS)
        finally:
            if life.poll() is None:
                os.killpg(life.pid, signal.SIGKILL)
        lines = self._log.read_text(errors="replace").splitlines()
        assert status == 0, "\n".join(lines[-60:])
        found = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("ANSWER ")]
        return {answer["query"]: answer for answer in found}

    def problems(self) -> str:
        """What the log says of the plugin."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if "ckpt" in line and "ERROR" in line)[-3000:]

    def begin(self, files: int, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start the application; it reads so many files a batch."""
        wanted = {
            "jars": driver_jars(),
            "conf": self._conf,
            "directory": str(self._home),
            "files": files,
            "queries": self._queries,
        }
        env = {**environment(), "SPARK_LOCAL_IP": "127.0.0.1", **(env or {})}
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [str(PYTHON), "-m", "tests.ecosystem.durable_tables", json.dumps(wanted)],
                cwd=ROOT,
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # JVM and side process are in its group: all are killed at once
            )


def wrong(answers: Mapping[str, dict[str, Any]], count: int = FILES) -> dict[str, str]:
    """The queries whose outputs have other rows than so many files, or that failed."""
    found = {}
    for query, answer in answers.items():
        rows, wanted = Counter(answer["rows"]), expected(query, count)
        lost, duplicated = wanted - rows, rows - wanted
        if answer["error"] or lost or duplicated:
            found[query] = f"lost {sorted(lost)}, too many {sorted(duplicated)}, {answer['error']}"
    return found


@pytest.mark.timeout(1500)
def test_tables_have_every_row_once_when_machine_and_disks_are_lost_at_any_moment(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Four queries in one application; three losses, then it runs to its end."""
    set_up()
    place = fresh_place(request, "s3", tmp_path)
    chance, before = random.Random(7), 0
    with FaultProxy(place.options["endpoint"], delay_seconds=0.02) as proxy:
        options = {**place.options, "endpoint": proxy.endpoint, "trustedStores": str(tmp_path)}
        machine = Machine(tmp_path, place.url, options, durability="batch", sink="rollback")
        for files in LIVES[:-1]:
            enough = before + chance.randint(len(QUERIES), 2 * len(QUERIES))
            machine.live_until(files, lambda planned: sum(planned.values()) >= enough, chance.random())
            before = enough
        answers = machine.live(LIVES[-1])
    assert wrong(answers) == {}, machine.problems()
    assert answers.keys() == set(QUERIES)


def captured(url: str) -> int:
    """The newest batch that the only query below a URL has in the store."""
    try:
        return max((epoch for _, epoch in CheckpointStore.open(resolve_root(url, None)).list()), default=-1)
    except CheckpointError:
        return -1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("query", QUERIES)
def test_without_durability_the_same_loss_is_one_of_rows(tmp_path: Path, query: str) -> None:
    """So that the test above can fail: what came after the last capture is planned anew, and dropped.

    Each query alone, and killed two batches after its only capture and long before it has read all files.
    """
    set_up()
    url, count = str(tmp_path / "store"), 2 * FILES
    settings: dict[str, Any] = {"durability": "async", "sink": "warn", "intervalSeconds": 3600}
    machine = Machine(tmp_path, url, {}, [query], count, **settings)
    machine.live_until(1, lambda planned: -1 < captured(url) < planned[query] - 2, 0.0)
    assert wrong(machine.live(4), count).keys() == {query}


@pytest.mark.timeout(900)
def test_an_automatic_restore_killed_while_tables_go_back_is_finished_by_the_next_start(
    tmp_path: Path,
) -> None:
    """SIGKILL before a change of a Delta table: the application does not start; the next one is exact."""
    set_up()
    queries, url = ("delta_stateless", "delta_stateful"), str(tmp_path / "store")
    settings: dict[str, Any] = {"durability": "async", "sink": "rollback", "intervalSeconds": 3600}
    machine = Machine(tmp_path, url, {}, queries, **settings)
    machine.live_until(1, lambda planned: min(planned.values()) >= 4, 0.0)
    note = tmp_path / "steps.json"
    env = kill_environment("pyspark_checkpoint.plugin.auto_restore", tmp_path / "outputs", (1, 2, 3), note)
    for left in (2, 1, 0):
        assert machine.begin(1, env).wait(SECONDS) != 0
        assert kills_left(note) == left, machine.problems()
    assert wrong(machine.live(4)) == {}, machine.problems()
