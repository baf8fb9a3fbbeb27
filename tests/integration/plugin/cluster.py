"""A standalone cluster of one master and two workers, which do not see the driver's own directories."""

from __future__ import annotations

import contextlib
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.integration.plugin.lab import Submitter
from tests.support.servers.process import PortLease, ServerProcess
from tests.support.waiting import wait_until

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_HIDE = 'mount -t tmpfs none "$0" && exec "$@"'


@contextlib.contextmanager
def standalone(
    submitter: Submitter, home: Path, hidden: Sequence[Path] = (), workers: int = 2
) -> Iterator[str]:
    """Run a cluster whose workers find the submitter's directory and those ``hidden`` empty; its URL."""
    lease = PortLease()
    port, page = lease.take(2)
    env = {
        "SPARK_HOME": str(submitter.spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_MEMORY": "2g",
        "PYSPARK_PYTHON": str(submitter.python),
    }
    started, unseen = [], [submitter.private, *hidden]
    spark_class = str(submitter.spark_home / "bin" / "spark-class")
    url = f"spark://127.0.0.1:{port}"
    try:
        options = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
        started.append(
            ServerProcess("master", [spark_class, _MASTER, *options], _place(home, "master"), env)
        )
        wait_until(lambda: _alive_workers(page) == 0, "the master")
        for number in range(workers):
            place = _place(home, f"worker-{number}")
            command = [spark_class, _WORKER, "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
            command += ["--webui-port", "0", "--work-dir", str(place / "work"), url]
            if can_hide(unseen):
                command = [*_hiding(unseen), *command]
            started.append(ServerProcess(f"worker-{number}", command, place, env))
        wait_until(lambda: _alive_workers(page) == workers, "the workers")
        yield url
    finally:
        for server in reversed(started):
            server.stop()
        lease.release()


def _place(home: Path, name: str) -> Path:
    place = home / name
    place.mkdir(parents=True)
    return place


def can_hide(directories: Sequence[Path]) -> bool:
    """Whether this machine lets a process have file systems of its own."""
    command = [*_hiding(directories), "true"]
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


def _hiding(directories: Sequence[Path]) -> list[str]:
    """What runs a command so that it finds these directories empty."""
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    hide = ["unshare", *user, "--mount"]
    for directory in directories:
        hide += ["sh", "-c", _HIDE, str(directory)]
    return hide


def _alive_workers(page: int) -> int:
    """How many workers the master has; -1 while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            body: bytes = answer.read()
            return body.decode().replace(" ", "").count('"state":"ALIVE"')
    except OSError:
        return -1
