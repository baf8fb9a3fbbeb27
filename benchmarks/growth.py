"""What grows over a long run of small batches: their time, requests and bytes, without any delay.

``growth`` has, on Spark 4.3, the listener and the sink with its state beside a query without any
checkpoint elsewhere; ``peer-growth``, on 4.1.1, ckpt-sink beside Iceberg and Delta Lake (a table checkpoint
every tenth commit, as by default). ``commit`` has 10,000 commits without Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.frame import Settings, Side
from benchmarks.lab import Lab, Load, open_lab, query_spec
from benchmarks.peers import DELTA, DELTA_IN_2, Case, open_peers, spec_of
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec

PARTITIONS = 2
EARLY = 10
"""Batches before the early ones: the JVM compiles."""
Sample = tuple[int, int, int]
"""Batches, requests and bytes until then."""


def stretches(
    where: str, batch_ms: Sequence[float], samples: Sequence[Sample], window: int, rows: int
) -> Iterator[Side]:
    """Cut a run in early batches, late ones, and those between; ``samples`` rise. Pure."""
    late = len(batch_ms) - window
    for way, first, last in (
        ("early", EARLY, EARLY + window),
        ("between", EARLY + window, late),
        ("late", late, len(batch_ms)),
    ):
        low = max(sample for sample in samples if sample[0] <= max(first, samples[0][0]))
        high = min(sample for sample in samples if sample[0] >= min(last, samples[-1][0]))
        batches = max(1, high[0] - low[0])
        requests, size_bytes = ((high[at] - low[at]) / batches for at in (1, 2))
        asked = {"requests": requests, "bytes a row": size_bytes / rows}
        yield Side(where, way, tuple(batch_ms[first:last]), counts=asked)


def run_long(lab: Lab, driver: Driver, way: str, spec: QuerySpec, settings: Settings) -> Iterator[Side]:
    """One query for many small batches: what is left is what a batch costs by itself."""
    batches, window = settings.number("batches"), settings.number("window")
    lab.proxy.clear()
    driver.start(spec)
    samples = [(0, 0, 0)]
    while samples[-1][0] < batches:
        time.sleep(0.5)
        done, (_, seen, sent) = driver.count_committed(spec.name), samples[-1]
        new = lab.proxy.requests[seen:]  # these only: late batches pay no more than early ones
        samples.append((done, seen + len(new), sent + sum(request.request_bytes for request in new)))
    result, _ = driver.stop(spec)
    where = f"{way}, {batches:,} batches"
    yield from stretches(where, result["batch_ms"][:batches], samples, window, spec.rows)


def measure_all(settings: Settings) -> Iterator[Side]:
    """The way that was asked for, in a session of its own."""
    way, rows = settings["case"], settings.number("rows")
    with open_lab() as lab, lab.driver() as driver:
        spec = query_spec(way, Load("windowed", "hdfs", PARTITIONS, rows, rows), lab.place, "growth")
        yield from run_long(lab, driver, way, replace(spec, listen_seconds=0.0), settings)  # every batch


def measure_peer(settings: Settings) -> Iterator[Side]:
    """The same on Spark 4.1.1."""
    case, rows = settings["case"], settings.number("rows")
    side = DELTA_IN_2 if case == DELTA else case  # 50 tasks a commit would tell nothing more in an hour
    with open_peers() as (lab, driver):
        spec = spec_of(lab, Case("append", rows, PARTITIONS), side, "growth")
        yield from run_long(lab, driver, side, spec, settings)
