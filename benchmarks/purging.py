"""Batches that also purge: past 100 batches with a small retention, each way.

The batches before that are run without a delay, so that the benchmark need not wait for them.

    python -m benchmarks.purging [--quick] [--before 100] [--batches 12] [--delays 20]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.lab import Pace, Tally, measure_on, open_lab, wait_for
from benchmarks.part import Argument, Part, Settings, run_part, tell
from benchmarks.records import Cell
from benchmarks.ways import Load, query_spec

RETENTION = {
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
}


def measure_all(settings: Settings) -> Iterator[Cell]:
    """One query a way, one after the other: what it does at first is the warm-up."""
    before = settings.number("before")
    rows = settings.number("rows")
    load = Load("windowed", settings.text("provider"), 4, rows, rows, conf=RETENTION)
    with open_lab() as lab, lab.driver() as driver:
        for delay_ms in settings.numbers("delays"):
            for way in settings.names("ways"):
                spec = query_spec(way, load, lab.place, f"purging-{way}-{delay_ms}")
                lab.delay(0)
                driver.start(spec)
                wait_for(driver, spec.name, before)
                lab.delay(delay_ms)
                tally = Tally()
                pace = Pace(
                    settings.number("batches"),
                    before + 1,
                    settings.number("longest-seconds"),
                    settings.number("shortest-seconds"),
                )
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
PART = Part("purging", (__doc__ or "").partition("\n")[0], ARGUMENTS, measure_all, "benchmarks.purging")

if __name__ == "__main__":
    run_part(PART, sys.argv[1:])
