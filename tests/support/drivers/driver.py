"""The test's end of a driver process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.announced import check_announced
from tests.support.drivers.queries import QuerySpec
from tests.support.drivers.session import SPARK_CONF
from tests.support.jvms import OWN_FILE_MANAGER, behind_spark, without_spark

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS = 300.0

_CONF = {
    **SPARK_CONF,
    "spark.master": "local[2]",
    "spark.app.name": "harness",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.stopTimeout": "120s",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


class DriverError(RuntimeError):
    """A driver could not do what it was told, or is gone."""


class Driver:
    """A Spark driver in a process of its own. Use as a context manager: it ends with the block."""

    def __init__(
        self,
        log: Path,
        *,
        conf: Mapping[str, str] | None = None,
        class_path: Sequence[Path] = (),
        python: str = sys.executable,
        own_file_manager: bool = True,
        program: str = "tests.support.drivers.app",
    ) -> None:
        """Start it. With jars, our file manager writes its locations unless told otherwise."""
        check_announced("spark")
        self.log = log
        manager = OWN_FILE_MANAGER if class_path and own_file_manager else {}
        confs = {**_CONF, **manager, **(conf or {})}
        self._output = log.open("ab")
        self._process = subprocess.Popen(
            [python, "-m", program, json.dumps(confs)],
            cwd=ROOT,
            env={**_environment(python), **behind_spark(class_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Driver:
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill() if error is not None else self.close()

    @property
    def pid(self) -> int:
        """The driver's process id, which its results carry."""
        return self._process.pid

    def wait_ready(self) -> Driver:
        """Wait until Spark runs."""
        if not self.versions:
            self.versions = self._answer(START_SECONDS)
        return self

    def call(self, op: str, patience_seconds: float = 120.0, **arguments: Any) -> Any:
        """Give a command and wait for its answer."""
        self.send(op, **arguments)
        return self._answer(patience_seconds)

    def send(self, op: str, **arguments: Any) -> None:
        """Give a command, and leave its answer to ``receive``."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, "arguments": arguments}) + "\n")
        except BrokenPipeError as broken:
            raise DriverError(f"the driver is gone: {self._tail()}") from broken

    def receive(self, timeout_seconds: float = 120.0) -> Any:
        """The answer to the oldest command that ``send`` gave."""
        return self._answer(timeout_seconds)

    def start(self, spec: QuerySpec) -> None:
        """Start a query."""
        self.call("start", spec=spec.as_dict())

    def run(self, *specs: QuerySpec, timeout_seconds: float = 180.0) -> dict[str, Any]:
        """Start queries and wait until all have done their batches; a failed one is an error."""
        for spec in specs:
            self.start(spec)
        outcome = self.wait([spec.name for spec in specs], timeout_seconds)
        for name, result in outcome.items():
            if result["error"] is not None or result["active"]:
                raise DriverError(f"{name}: {result['error'] or 'not done in time'}")
        return outcome

    def wait(self, names: Sequence[str], timeout_seconds: float = 180.0) -> dict[str, Any]:
        """Wait until the queries have done their batches or failed, and say which."""
        answer: dict[str, Any] = self.call(
            "wait", timeout_seconds + 30, names=list(names), timeout_seconds=timeout_seconds
        )
        return answer

    def poll(self, name: str) -> dict[str, Any]:
        """Where a query is now."""
        result: dict[str, Any] = self.call("poll", name=name)
        return result

    def count_committed(self, name: str) -> int:
        """How many batches a query has done; one that is not running any more is an error."""
        result = self.poll(name)
        if not result["active"]:
            raise RuntimeError(f"{name} ended: {result['error']}")
        return len(result["committed"])

    def wait_for(self, name: str, batches: int, timeout_seconds: float = 600.0) -> int:
        """Wait until a query has done so many batches, or the time is over; say how many it has done."""
        deadline = time.monotonic() + timeout_seconds
        while (done := self.count_committed(name)) < batches and time.monotonic() < deadline:
            time.sleep(0.1)
        return done

    def flush(self, name: str, timeout_seconds: float = 120.0) -> None:
        """Wait until all that a query has committed is in its listener's store."""
        if not self.call("flush", timeout_seconds + 30, name=name, timeout_seconds=timeout_seconds):
            raise RuntimeError(f"{name}: what it committed is not in the store")

    def stop(self, spec: QuerySpec) -> tuple[dict[str, Any], int]:
        """Stop a query, and its listener when that is done; what the query did, and how many captures."""
        result: dict[str, Any] = self.call("stop", 600, name=spec.name)
        if not spec.listen:
            return result, 0
        self.flush(spec.name)
        return result, self.call("unlisten", 150, name=spec.name)

    def kill(self) -> None:
        """End it by SIGKILL, Python and JVM alike."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._close_streams()

    def close(self) -> None:
        """End it in order."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
        self.kill()

    def _close_streams(self) -> None:
        self._process.wait(timeout=30)
        for stream in (self._process.stdin, self._process.stdout, self._output):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _answer(self, timeout_seconds: float) -> Any:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_seconds
        while True:
            ready, _, _ = select.select([self._process.stdout], [], [], 0.2)
            if ready:
                line = self._process.stdout.readline()
                if not line:
                    raise DriverError(f"the driver is gone: {self._tail()}")
                answer = json.loads(line)
                if "error" in answer:
                    raise DriverError(f"{answer['error']}\n{answer['trace']}")
                return answer["result"]
            if time.monotonic() > deadline:
                raise DriverError(f"no answer in {timeout_seconds} s: {self._tail()}")

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def _environment(python: str) -> dict[str, str]:
    return {
        **without_spark(os.environ),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
