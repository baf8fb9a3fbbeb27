"""Batches that also purge: past 100 batches with a small retention, each way.

The batches before that are run without a delay, so that the benchmark need not wait for them.

    python -m benchmarks.purging [--quick] [--before 100] [--batches 12] [--delays 20]
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from benchmarks.frame import Argument, Cell, Part, Settings, tell
from benchmarks.lab import Load, Pace, Tally, measure_on, open_lab, query_spec, wait_for
from benchmarks.report import run_and_show

RETENTION = {
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
}


def measure_all(settings: Settings) -> Iterator[Cell]:
    """One query a way, one after the other: what it does at first is the warm-up."""
    before, rows = settings.number("before"), settings.number("rows")
    load = Load("windowed", settings["provider"], 4, rows, rows, conf=RETENTION)
    longest, shortest = settings.number("longest-seconds"), settings.number("shortest-seconds")
    pace = Pace(settings.number("batches"), before + 1, longest, shortest)
    with open_lab() as lab, lab.driver() as driver:
        for delay_ms, way in product(settings.numbers("delays"), settings.names("ways")):
            spec = query_spec(way, load, lab.place, f"purging-{way}-{delay_ms}")
            lab.delay(0)
            driver.start(spec)
            wait_for(driver, spec.name, before)
            lab.delay(delay_ms)
            tally = Tally()
            measure_on(lab, driver, spec, pace, tally)
            cell = tally.cell(way, load, delay_ms)
            tell(f"purging, {way}: p50 {cell.p50:.0f} ms, {cell.per_batch:.1f} requests a batch")
            yield cell


ARGUMENTS = (
    Argument("ways", "stock,tuned,ours,listener,sink", "stock,ours", "ways"),
    Argument("provider", "hdfs", "hdfs", "state store"),
    Argument("before", "101", "101", "batches before the measured ones"),
    Argument("batches", "10", "6", "measured batches"),
    Argument("rows", "2000", "2000", "rows and keys"),
    Argument("delays", "20", "20", "milliseconds added to every request"),
    Argument("shortest-seconds", "12", "12", "to measure at least: two rounds of Spark's maintenance"),
    Argument("longest-seconds", "60", "30", "after which measuring ends"),
)
PART = Part("purging", __doc__, measure_all, ARGUMENTS)

if __name__ == "__main__":
    run_and_show(PART)
