"""What it costs a query that no batch begins before the one before it is durable: batches, side by side.

One query with state, its checkpoint location on a local disk and its checkpoints on an S3 server, by an
application for each way: without any capture, with captures that it does not wait for, and durable.

    python -m benchmarks.durability [--quick] [--delays 0,20,50] [--keys 10000] [--rounds 4] [--batches 20]
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.frame import Argument, Part, Settings, Side, in_turns, tell
from benchmarks.lab import Lab, open_lab
from benchmarks.report import run_and_show

APP = Path(__file__).with_name("durability_app.py")
NONE, ASYNC, BATCH = WAYS = ("no capture", "async", "batch")


class Application:
    """An application of one way; its queries run one after the other, when they are asked for."""

    def __init__(self, lab: Lab, way: str, settings: Settings) -> None:
        home = lab.home / f"durability-{way.replace(' ', '-')}"
        home.mkdir()
        self._log = home / "driver.log"
        given: dict[str, object] = {"home": str(home), "configure": {}}
        if way != NONE:
            url, options = f"s3://{lab.server.bucket}/{home.name}", dict(lab.place.store_options)
            given["configure"] = {"durability": way, "url": url, "options": options}
        given |= {"keys": settings.number("keys"), "batches": settings.number("batches")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(APP)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            )
        self._tell(json.dumps(given))

    def run(self, query: str) -> list[int]:
        """What each batch of a query took, in milliseconds."""
        self._tell(query)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._log.read_text(errors="replace")[-2000:])
        found: list[int] = json.loads(line)
        return found

    def close(self) -> None:
        """It ends when its input does."""
        self._process.communicate(timeout=60)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)


def measure_all(settings: Settings) -> Iterator[Side]:
    """All applications at once, one query at a time, in turns; then a side for each, with its ratio."""
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    with open_lab() as lab, contextlib.ExitStack() as stack:
        running = {way: Application(lab, way, settings) for way in WAYS}
        for application in running.values():
            stack.callback(application.close)
        for delay_ms in settings.numbers("delays"):
            lab.delay(delay_ms)
            for number, way in in_turns(WAYS, settings.number("rounds")):
                found[delay_ms, way] += running[way].run(f"query-{delay_ms}-{number}")
        lab.delay(0)
    for delay_ms in settings.numbers("delays"):
        sides = [Side(f"{delay_ms} ms", way, tuple(found[delay_ms, way])) for way in WAYS]
        for side in sides:
            tell(f"{side.where}, {side.way}: {side.p50:.0f} ms, {side.p50 / sides[0].p50:.2f}x")
        yield from sides


PART = Part(
    "durability",
    __doc__,
    measure_all,
    (
        Argument("delays", "0,20,50", "0,20", "milliseconds that each request to the store waits"),
        Argument("keys", "10000", "10000", "keys of the state, and rows of a batch"),
        Argument("batches", "20", "8", "batches of each query that count"),
        Argument("rounds", "4", "2", "queries of each way at each delay"),
    ),
)

if __name__ == "__main__":
    run_and_show(PART)
