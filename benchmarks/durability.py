"""What it costs a query that no batch begins before the one before it is durable: batches, side by side.

One query with state, its checkpoint location on a local disk and its checkpoints on an S3 server, by an
application for each way: without any capture, with captures that it does not wait for, and durable.

    python -m benchmarks.durability [--quick] [--delays 0,20,50] [--keys 10000] [--rounds 2] [--batches 20]
"""

from __future__ import annotations

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


def run_way(lab: Lab, way: str, number: int, settings: Settings) -> Iterator[tuple[int, list[int]]]:
    """An application that runs the query once for each delay: the delay, and what its batches took."""
    home = lab.home / f"durability-{number}-{way.replace(' ', '-')}"
    home.mkdir()
    configured = {} if way == NONE else {"durability": way, "url": f"s3://{lab.server.bucket}/{home.name}"}
    given = {
        "home": str(home),
        "configure": {**configured, "options": dict(lab.place.store_options) if configured else {}},
        "keys": settings.number("keys"),
        "batches": settings.number("batches"),
    }
    with (
        (home / "driver.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, str(APP)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps(given), file=process.stdin, flush=True)
        for delay_ms in settings.numbers("delays"):
            lab.delay(delay_ms)
            print(f"query-{delay_ms}", file=process.stdin, flush=True)
            line = process.stdout.readline()
            if not line:
                raise RuntimeError((home / "driver.log").read_text(errors="replace")[-2000:])
            yield delay_ms, json.loads(line)
        process.stdin.close()
    lab.delay(0)


def measure_all(settings: Settings) -> Iterator[Side]:
    """Every way in turns; then a side for each, with its ratio to no capture."""
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    with open_lab() as lab:
        for number, way in in_turns(WAYS, settings.number("rounds")):
            for delay_ms, batch_ms in run_way(lab, way, number, settings):
                found[delay_ms, way] += batch_ms
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
        Argument("rounds", "2", "1", "applications of each way"),
    ),
)

if __name__ == "__main__":
    run_and_show(PART)
