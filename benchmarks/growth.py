"""What grows: batch time, requests and bytes over many epochs. ``benchmarks.commit`` has many partitions.

python -m benchmarks.growth [--quick] [--epochs 1000] [--ways listener,sink]
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.frame import Argument, Part, Settings, Side, tell
from benchmarks.lab import Lab, Load, count_committed, open_lab, query_spec
from benchmarks.report import run_and_show
from tests.support.drivers.driver import Driver

STRETCHES = 10
LONG_PARTITIONS = 2
ALONE_SHARE = 5
"""The query without any checkpoint elsewhere is there for its batch time: it runs for a fifth."""
Sample = tuple[int, int, int]
"""Batches, requests and bytes until then."""


def stretches(
    where: str, batch_ms: Sequence[float], samples: Sequence[Sample], wanted: int, rows: int
) -> Iterator[Side]:
    """Cut a run in equal stretches; ``samples`` rise. Pure."""
    length = max(1, wanted // STRETCHES)
    for number, first in enumerate(range(0, wanted - length + 1, length), 1):
        last = first + length
        low = max(sample for sample in samples if sample[0] <= max(first, samples[0][0]))
        high = min(sample for sample in samples if sample[0] >= min(last, samples[-1][0]))
        epochs = max(1, high[0] - low[0])
        asked = {"requests": (high[1] - low[1]) / epochs, "bytes a row": (high[2] - low[2]) / epochs / rows}
        yield Side(where, f"tenth {number}", tuple(batch_ms[first:last]), counts=asked)


def run_long(lab: Lab, driver: Driver, way: str, settings: Settings) -> Iterator[Side]:
    """One query for many epochs, with small batches: what is left is what an epoch costs by itself."""
    epochs, rows = settings.number("epochs"), settings.number("rows")
    if way == "disk":
        epochs = max(1, epochs // ALONE_SHARE)
    load = Load("windowed", "hdfs", LONG_PARTITIONS, rows, rows)
    spec = replace(query_spec(way, load, lab.place, f"growth-{way}"), listen_seconds=0.0)  # every epoch
    lab.delay(0)
    lab.proxy.clear()
    driver.start(spec)
    samples = [(0, 0, 0)]
    while samples[-1][0] < epochs:
        time.sleep(0.5)
        done, seen = count_committed(driver, spec.name), list(lab.proxy.requests)
        samples.append((done, len(seen), sum(request.request_bytes for request in seen)))
    result = driver.call("stop", 300, name=spec.name)
    if spec.listen:
        driver.call("unlisten", 150, name=spec.name)
    return stretches(f"{way}, {epochs:,} epochs", result["batch_ms"], samples, epochs, rows)


def measure_all(settings: Settings) -> Iterator[Side]:
    """One way after the other."""
    with open_lab() as lab, lab.driver() as driver:
        for way in settings.names("ways"):
            for side in run_long(lab, driver, way, settings):
                tell(f"{side.where}, {side.way}: p50 {side.p50:.0f} ms")
                yield side


PART = Part(
    "growth",
    __doc__,
    measure_all,
    (
        Argument("ways", "disk,listener,sink", "disk,listener,sink", "ways"),
        Argument("epochs", "1000", "100", "epochs of each long run, a fifth of them for disk"),
        Argument("rows", "200", "200", "rows and keys of a long run"),
    ),
)

if __name__ == "__main__":
    run_and_show(PART)
