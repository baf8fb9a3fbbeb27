"""A query whose batch waits while its store is away: stopped, out of time, or left by the side process.

The store is on an S3 server, behind a proxy that refuses every request while it is away.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Place, fresh_place
from tests.integration.plugin.test_durable import Life, app_home, produced, written
from tests.support.servers.faults import Fault, Rule
from tests.support.servers.proxy import FaultProxy
from tests.support.waiting import wait_until

__all__ = ["app_home"]
pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.server]
FOREVER_SECONDS = 3600


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A store on the S3 server."""
    return fresh_place(request, "s3", tmp_path)


@pytest.fixture
def proxy(place: Place) -> Iterator[FaultProxy]:
    """What stands before that server."""
    with FaultProxy(place.options["endpoint"]) as found:
        yield found


class Held:
    """A life of the application, on a store that goes away when it has done some batches."""

    def __init__(self, home: Path, place: Place, proxy: FaultProxy, timeout_seconds: int) -> None:
        self.home, self.proxy = home, proxy
        self._options = {**place.options, "endpoint": proxy.endpoint, "retrySeconds": "1"}
        self._url, self._timeout_seconds = place.url, timeout_seconds
        self.life = self.begin()

    def begin(self) -> Life:
        """Start the application; it reads a file a batch."""
        return Life(
            self.home,
            "batch",
            1,
            url=self._url,
            options=self._options,
            durability_timeout_seconds=self._timeout_seconds,
            stop_timeout_seconds=1,
        )

    def lose_store(self) -> int:
        """Let the store go away after some batches, and wait until a batch waits for it: which one."""
        self.life.wait(2)
        self.proxy.add(Rule(Fault.ERROR_503, times=None))
        seen = len(self.proxy.requests)
        wait_until(lambda: len(self.proxy.requests) > seen + 2 or self.has_ended(), what="refused requests")
        wait_until(lambda: "capture failed, and is retried" in self.log() or self.has_ended(), what="a try")
        assert not self.has_ended(), self.log()[-4000:]
        return self.planned() + 1

    def planned(self) -> int:
        """The newest batch that it has planned."""
        return max(int(path.name) for path in (self.home / "location" / "offsets").glob("[0-9]*"))

    def has_ended(self) -> bool:
        """Whether the application has ended."""
        return self.life.process.poll() is not None

    def log(self) -> str:
        """What the driver has logged."""
        return self.life.log.read_text(errors="replace")

    def bring_store_back(self) -> None:
        """From now on the store answers."""
        self.proxy.clear()

    def side_process(self) -> int:
        """The side process of the application, among the processes of its group."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().decode()
                group = int((entry / "stat").read_text().rpartition(")")[2].split()[2])
            except (OSError, ValueError):
                continue
            if group == self.life.process.pid and "plugin.process" in command.replace("\0", " "):
                return int(entry.name)
        raise AssertionError("there is no side process")


def check_exact(home: Path, life: Life) -> None:
    """The application ends by itself, and every row is there once."""
    assert life.end() == 0, life.log.read_text()[-4000:]
    assert written(home) == produced(home)


@pytest.mark.timeout(300)
def test_a_query_that_is_stopped_while_its_batch_waits_stops_and_loses_nothing(
    app_home: Path, place: Place, proxy: FaultProxy
) -> None:
    """Its batch would wait for an hour. It is not planned, and the next start plans it."""
    held = Held(app_home, place, proxy, FOREVER_SECONDS)
    batch = held.lose_store()
    (app_home / "stop").touch()
    assert held.life.end() == 0, held.log()[-4000:]
    assert held.planned() == batch - 1
    (app_home / "stop").unlink()
    held.bring_store_back()
    check_exact(app_home, held.begin())


@pytest.mark.timeout(300)
def test_a_store_that_is_away_for_too_long_fails_the_query_with_what_to_do(
    app_home: Path, place: Place, proxy: FaultProxy
) -> None:
    """Nothing of the batch is written; started again on the same disk, the query goes on."""
    held = Held(app_home, place, proxy, 5)
    batch = held.lose_store()
    assert held.life.end() != 0
    said = re.findall(r"ckpt: batch \d+ of query \S+ does not begin.*", held.log())[0]
    for words in (
        f"batch {batch} of",
        "durability=batch",
        "after at most 5 s",
        "durabilityTimeoutSeconds",
        "Nothing is lost",
        "start the query again",
    ):
        assert words in said
    assert held.planned() == batch - 1
    held.bring_store_back()
    check_exact(app_home, held.begin())


@pytest.mark.timeout(300)
def test_a_side_process_killed_while_a_batch_waits_is_followed_by_one_that_lets_it_go(
    app_home: Path, place: Place, proxy: FaultProxy
) -> None:
    """The plan is handed to the next one; the query has not noticed."""
    held = Held(app_home, place, proxy, FOREVER_SECONDS)
    batch = held.lose_store()
    killed = held.side_process()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: "the side process has ended; it is started again" in held.log(), what="its end")
    assert held.planned() == batch - 1
    held.bring_store_back()
    check_exact(app_home, held.life)
