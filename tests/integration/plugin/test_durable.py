"""The whole machine lost at random moments: driver, side process and checkpoint location. Every row once.

The first lives read one file a batch, later ones several: a batch that is planned anew is another batch.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.hadoop import build_jar
from tests.support.sink_kit import read_rows
from tests.support.waiting import LIMIT_SECONDS, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.crash]

APP = Path(__file__).with_name("durable_app.py")
FILES, ROWS = 16, 30
LIVES = (1, 3, 2, 1, 2)
"""How many files a batch of each life reads; the last one ends by itself."""


class Life:
    """One life of the application; its machine is lost when it is killed."""

    def __init__(
        self,
        home: Path,
        durability: str,
        files: int,
        query: str = "stateless",
        *,
        env: Mapping[str, str] | None = None,
        **configured: object,
    ) -> None:
        given = {"url": str(home / "store"), "restore": "missing", "durability": durability}
        confs = {
            "configure": {**given, **configured},
            "files": files,
            "query": query,
        }
        self._home = home
        self.env = dict(env or {})
        self.log = home / "driver.log"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(APP), str(home), json.dumps(confs)],
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_PYTHON": sys.executable,
                    **self.env,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, batches: int) -> None:
        """Wait until it has planned so many batches, or has ended."""
        offsets = self._home / "location" / "offsets"

        def has() -> bool:
            planned = [int(path.name) for path in offsets.glob("[0-9]*")]
            return max(planned, default=-1) >= batches or self.process.poll() is not None

        wait_until(has, what=f"batch {batches}")

    def lose_machine(self) -> None:
        """Kill all its processes at once, and remove what was on its disk."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        shutil.rmtree(self._home / "location")

    def end(self) -> int:
        """Its exit status."""
        try:
            return self.process.wait(LIMIT_SECONDS)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)


def produced(home: Path) -> Counter[str]:
    """Every row that the input has."""
    return Counter(row for path in (home / "input").iterdir() for row in path.read_text().splitlines())


def written(home: Path) -> Counter[str]:
    """Every row of the file sink, by its own log and without Spark."""
    log = home / "output" / "_spark_metadata"
    entries = {int(path.name.partition(".")[0]): path for path in sorted(log.glob("[0-9]*"))}
    compact = max((number for number, path in entries.items() if path.suffix), default=0)
    rows: Counter[str] = Counter()
    for number, path in entries.items():
        if number < compact:
            continue
        for line in path.read_text().splitlines()[1:]:
            file = Path(json.loads(line)["path"].removeprefix("file://"))
            rows.update(file.read_text().splitlines())
    return rows


def in_table(home: Path) -> Counter[str]:
    """Every row of the ckpt-sink."""
    return Counter(row["value"] for row in read_rows(str(home / "output")))


@pytest.fixture
def app_home(tmp_path: Path) -> Path:
    build_jar()
    (tmp_path / "input").mkdir()
    for number in range(FILES):
        path = tmp_path / "input" / f"{number:03d}.txt"
        path.write_text("\n".join(f"{number}-{row}" for row in range(ROWS)))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return tmp_path


@pytest.mark.timeout(600)
@pytest.mark.parametrize("query", ["stateless", "stateful", "table", "table-alone"])
def test_no_row_is_lost_or_duplicated_when_machine_and_disk_are_lost_at_any_moment(
    app_home: Path, query: str
) -> None:
    """Spark alone promises that on a disk that is still there.

    Files drop a batch that they have without running its plan: with state they are rolled back by it.
    """
    asked: dict[str, Any] = {"query": query, **({"sink": "rollback"} if query == "stateful" else {})}
    chance = random.Random(7)
    planned = -1
    for files in LIVES[:-1]:
        life = Life(app_home, "batch", files, **asked)
        life.wait(planned + chance.randint(1, 2))
        time.sleep(chance.random() * 0.6)
        offsets = app_home / "location" / "offsets"
        planned = max((int(path.name) for path in offsets.glob("[0-9]*")), default=planned)
        life.lose_machine()
    last = Life(app_home, "batch", LIVES[-1], **asked)
    assert last.end() == 0, last.log.read_text()[-4000:]
    assert (in_table if query.startswith("table") else written)(app_home) == produced(app_home)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("query", ["stateful", "table-alone"])
def test_no_row_is_lost_or_duplicated_when_the_machine_is_lost_in_the_first_batch(
    app_home: Path, query: str
) -> None:
    """Its plan is in the store, although no checkpoint of a batch is there yet."""
    asked: dict[str, Any] = {"query": query, **({"sink": "rollback"} if query == "stateful" else {})}
    life = Life(app_home, "batch", 1, **asked)
    output = "output/manifests/*" if query == "table-alone" else "output/_spark_metadata/0"
    wait_until(
        lambda: any(app_home.glob(output)) or life.process.poll() is not None, what="rows of batch 0"
    )
    life.lose_machine()
    last = Life(app_home, "batch", 3, **asked)
    assert last.end() == 0, last.log.read_text()[-4000:]
    assert (in_table if query.startswith("table") else written)(app_home) == produced(app_home)


@pytest.mark.timeout(300)
def test_without_durability_the_same_loss_is_one_of_rows(app_home: Path) -> None:
    """So that the test above can fail: batches after the last capture are planned anew, and dropped."""
    life = Life(app_home, "async", 1, interval_seconds=3600)
    life.wait(4)
    life.lose_machine()
    last = Life(app_home, "async", 4, sink="warn")
    assert last.end() == 0, last.log.read_text()[-4000:]
    assert produced(app_home) - written(app_home)
