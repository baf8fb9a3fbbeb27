"""ckpt-sink beside noop, an empty Python Arrow sink (the floor) and Spark's Parquet file sink.

Large batches go to local disk, after nothing, a shuffle, or an aggregation. Small ones go to S3 by as many
tasks as a cluster has by default, beside noop and the empty sink behind the same shuffle. ``peers`` has
Iceberg and Delta Lake, ``growth`` what many batches cost, ``compaction`` those that compact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.app import EMPTY_FORMAT
from benchmarks.frame import Argument, Part, Settings, Side
from benchmarks.lab import FOREVER, Contender, Lab, Pace, compare, open_lab, run_turns, warm_up
from benchmarks.peers import OURS, Case, contender
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec

ON_DISK = {
    "empty": (EMPTY_FORMAT, "append"),
    "ckpt-sink append": (OURS, "append"),
    "parquet files": ("parquet", "append"),
    "empty behind the shuffle": (EMPTY_FORMAT, "shuffled"),
    "ckpt-sink keyed append": (OURS, "append"),
    "empty behind the aggregation": (EMPTY_FORMAT, "complete totals"),
    "ckpt-sink keyed after it": (OURS, "totals"),
}
"""The formats and kinds of queries."""
SMALL = (OURS, "noop", EMPTY_FORMAT)


def disk_spec(lab: Lab, way: str, rows: int, partitions: int, name: str) -> QuerySpec:
    """A query from memory to a table on disk."""
    sink, kind = ON_DISK[way]
    options = {"table": str(lab.home / "tables" / name)} if sink != EMPTY_FORMAT else {}
    options |= {"keyColumns": "key"} if "keyed" in way else {}
    conf = {"spark.sql.shuffle.partitions": str(partitions)}
    location, results = f"file://{lab.place.disk(name)}", str(lab.home / "results" / name)
    return QuerySpec(name, kind, location, results, FOREVER, conf, rows, 0, sink, options)


def disk_contender(lab: Lab, driver: Driver, way: str, rows: int, settings: Settings) -> Contender:
    """A side of the comparison on disk."""
    partitions, pace = settings.number("partitions"), Pace(settings.number("batches"), 2)
    return Contender(way, driver, lambda name: disk_spec(lab, way, rows, partitions, name), pace)


def measure_all(settings: Settings) -> Iterator[Side]:
    """Every number of rows on disk, then small batches of every number of tasks."""
    rounds, delay = settings.number("rounds"), settings.number("delay")
    with open_lab() as lab, lab.driver() as driver:
        for rows in settings.numbers("rows"):
            sides = [disk_contender(lab, driver, way, rows, settings) for way in ON_DISK]
            yield from compare(lab, f"{rows:,} rows", sides, rounds, 0)
        for kind in ("append", "upsert"):
            pace = Pace(settings.number("batches"), 1, 60)
            cases = [Case(kind, 10_000, many) for many in settings.numbers("tasks")]
            warm_up(lab, [contender(lab, driver, Case(kind, 1000, 4), side) for side in SMALL])
            for case in cases:
                sides = [contender(lab, driver, case, side, pace) for side in SMALL]
                found = run_turns(lab, case.where, sides, rounds, delay)
                yield from (tally.side(case.where, side) for side, tally in found.items())
                first = found[OURS].first(case.where, OURS) if OURS in found else None
                yield from [replace(first, where=f"{case.where}: first batch")] if first else []


PART = Part(
    "sink",
    __doc__,
    measure_all,
    (
        Argument("rows", "100000,1000000", "100000", "rows a batch on disk"),
        Argument("partitions", "2", "2", "shuffle partitions on disk"),
        Argument("tasks", "4,64,200", "4,64", "shuffle partitions of small batches to S3"),
        Argument("delay", "20", "20", "milliseconds added to every request to S3"),
        Argument("rounds", "2", "1", "turns of each side"),
        Argument("batches", "5", "3", "measured batches a turn"),
    ),
)
