"""The program of a test driver: runs queries that it is told about, one JSON line at a time.

Started by ``tests.support.drivers.driver``. The first argument has the Spark confs as JSON. Commands come
on standard input, answers go to standard output, Spark's log to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_checkpoint
from tests.support.drivers.queries import KINDS, QuerySpec

# Spark gives a Python worker ten seconds to start, which a busy machine may not have; it cannot be set.
TOO_BUSY = "Python worker failed to connect back"
MOST_RESTARTS = 30


class Running:
    """A query that stops by itself after its last batch."""

    def __init__(self, spec: QuerySpec, start: Callable[[], StreamingQuery]) -> None:
        self.spec = spec
        self.query = start()
        self.committed: set[int] = set()
        self.progress: list[dict[str, Any]] = []
        self._start = start
        self._seen = 0
        self._restarts = 0
        self._done = False

    def poll(self) -> bool:
        """Take notice of progress; say whether the query has ended."""
        is_active = self.query.isActive
        self._notice()
        if is_active and self.committed and max(self.committed) >= self.spec.batches - 1:
            self._done = True
            self.query.stop()
            return True
        return not is_active and not self._restart()

    def _notice(self) -> None:
        """Read the events that are new: Python's own list costs a hundred calls into the JVM each."""
        events = self.query._jsq.recentProgress()
        for number in range(self._seen, len(events)):
            event = json.loads(events[number].json())
            is_batch = event["durationMs"].get("commitOffsets") is not None
            if is_batch and event["batchId"] not in self.committed:
                self.committed.add(event["batchId"])
                self.progress.append(event)
        self._seen = len(events)

    def _restart(self) -> bool:
        """Start a query again that failed only because the machine is busy."""
        error = self.result()["error"]
        if error is None or TOO_BUSY not in error or self._restarts == MOST_RESTARTS:
            return False
        self._restarts += 1
        self._seen = 0
        self.query = self._start()
        return True

    def result(self) -> dict[str, Any]:
        """What is told to the test."""
        error: Exception | None
        try:
            # Spark may take its own interruption of a query that was told to stop for a failure.
            error = None if self._done else self.query.exception()
        except Exception as failure:  # noqa: BLE001 - told to the test, whatever it is
            error = failure
        return {
            "active": self.query.isActive,
            "committed": sorted(self.committed),
            "error": None if error is None else str(error),
            "batch_ms": [event["durationMs"]["triggerExecution"] for event in self.progress],
            "duration_ms": [event["durationMs"] for event in self.progress],
        }


class App:
    """The commands; each method is one."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._running: dict[str, Running] = {}
        self._listeners: dict[str, pyspark_checkpoint.CheckpointListener] = {}

    def start(self, spec: dict[str, Any]) -> None:
        """Start a query; its session has its confs and nobody else's."""
        wanted = QuerySpec(**spec)
        session = self._session.newSession()
        for name, value in wanted.conf.items():
            session.conf.set(name, value)
        if wanted.listen:
            self._listeners[wanted.name] = pyspark_checkpoint.checkpoint(
                session,
                wanted.listen,
                interval_seconds=wanted.listen_seconds,
                poll_seconds=1.0,
                options=wanted.listen_options,
            )
        build, mode = KINDS[wanted.kind]
        writer = build(session, wanted).writeStream.outputMode(mode).queryName(wanted.name)
        writer = writer.option("checkpointLocation", wanted.location)
        writer = writer.trigger(processingTime=f"{wanted.interval_ms} milliseconds")
        if wanted.format:
            writer = writer.format(wanted.format).options(**wanted.options)
        else:
            writer = writer.foreachBatch(_keeper(wanted))
        self._running[wanted.name] = Running(wanted, writer.start)

    def wait(self, names: list[str], timeout_seconds: float) -> dict[str, Any]:
        """Wait until the named queries have done their batches or failed."""
        deadline = time.monotonic() + timeout_seconds
        waited = [self._running[name] for name in names]
        while not all([running.poll() for running in waited]):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return {running.spec.name: running.result() for running in waited}

    def poll(self, name: str) -> dict[str, Any]:
        """Say where a query is now."""
        self._running[name].poll()
        return self._running[name].result()

    def stop(self, name: str) -> dict[str, Any]:
        """Stop a query now."""
        running = self._running[name]
        running.query.stop()
        running.poll()
        return running.result()

    def flush(self, name: str, timeout_seconds: float) -> bool:
        """Wait until all that a query has committed is in its listener's store."""
        return self._listeners[name].flush(timeout_seconds)

    def unlisten(self, name: str) -> int:
        """End the listener of a query that was stopped; say how many captures it made."""
        listener = self._listeners.pop(name)
        listener.close()
        return sum(status.captures for status in listener.statuses)

    def sql(self, text: str) -> list[dict[str, Any]]:
        """Rows of a SQL query."""
        return [json.loads(row) for row in _json_rows(self._session.sql(text))]

    def read(self, format: str, options: dict[str, str], conf: dict[str, str]) -> list[str]:
        """Rows of a batch reader, as JSON, sorted."""
        session = self._session.newSession()
        for name, value in conf.items():
            session.conf.set(name, value)
        return sorted(_json_rows(session.read.format(format).options(**options).load()))

    def versions(self) -> dict[str, str]:
        """What runs here."""
        jvm = self._session._jvm
        assert jvm is not None
        return {
            "spark": self._session.version,
            "hadoop": jvm.org.apache.hadoop.util.VersionInfo.getVersion(),
        }


def _json_rows(frame: DataFrame) -> list[str]:
    """Rows as JSON; only a session of Spark Connect has them in another form than an RDD."""
    rows = frame.toJSON()
    assert isinstance(rows, RDD)
    return rows.collect()


def _keeper(spec: QuerySpec) -> Any:
    """A sink that is idempotent: one file a batch, and a line for every time that it is run."""
    results = Path(spec.results)
    results.mkdir(parents=True, exist_ok=True)

    def keep(frame: DataFrame, batch_id: int) -> None:
        rows = sorted(_json_rows(frame))
        with (results / "runs.log").open("a") as runs:
            runs.write(f"{batch_id} {os.getpid()}\n")
        temporary = results / f".{batch_id}.{os.getpid()}"
        temporary.write_text("\n".join(rows))
        temporary.replace(results / f"{batch_id:06d}.json")

    return keep


def main(commands: type[App] = App) -> None:
    """Answer commands until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    builder = SparkSession.builder
    for name, value in json.loads(sys.argv[1]).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    app = commands(session)
    print(json.dumps({"result": app.versions()}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"result": getattr(app, command["op"])(**command["arguments"])}
        except Exception as failure:  # noqa: BLE001 - told to the test, whatever it is
            answer = {"error": f"{failure}", "trace": traceback.format_exc()}
        print(json.dumps(answer), file=answers)
    threading.Timer(20, os._exit, [1]).start()
    session.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
