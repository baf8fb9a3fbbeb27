"""Spark's checkpoints on S3, stock and tuned, beside our file manager, the listener and the sink.

One driver runs the same query in each way in turns, on an S3 server behind a proxy that delays every
request and counts it. A second round goes through the ways backwards.
The variants at the end ask other questions of the same measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, product

from benchmarks.frame import Argument, Part, Settings, Side
from benchmarks.lab import LISTENERS, Load, Pace, compare, open_lab, warm_up, way_contender

JOIN_ROWS = 20_000
AIM_DELAY_MS = 20
"""The delay of the aims: where most batches are run, and the listener is shown with both managers."""
BESIDE = "listener-stock"
RETENTION = {
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
}
"""So that every batch purges, past 100 batches; two rounds of maintenance are measured at least."""
CAPTURE_SECONDS = 8.0
"""Captures take short batches together: so long a way with a listener is measured at least, at the aims."""


@dataclass(frozen=True)
class Situation:
    """A load at a delay, the ways that are compared in it, and how long each is measured."""

    load: Load
    delay_ms: int
    ways: tuple[str, ...]
    pace: Pace
    rounds: int

    def pace_of(self, way: str) -> Pace:
        """Where captures take several batches together, the time must be long enough for some captures."""
        if way not in LISTENERS:
            return self.pace
        share = 1 if self.delay_ms == AIM_DELAY_MS else 2
        return replace(self.pace, shortest_seconds=max(self.pace.shortest_seconds, CAPTURE_SECONDS / share))


def situations(settings: Settings) -> Iterator[Situation]:
    """Every combination."""
    for query, provider in product(settings.names("queries"), settings.names("providers")):
        many = settings.numbers("join-partitions" if query == "join" else "partitions")
        for partitions, delay_ms in product(many, settings.numbers("delays")):
            yield situation(settings, query, partitions, provider, delay_ms)


def situation(settings: Settings, query: str, partitions: int, provider: str, delay_ms: int) -> Situation:
    """One combination: few batches where there is no aim of time, one round where batches take long."""
    rows, batches = settings.number("rows"), settings.number("batches")
    is_join, many = query == "join", partitions > 16
    before, rows = settings.number("before"), min(rows, JOIN_ROWS) if is_join else rows
    conf = RETENTION if before else {}
    load = Load(query, provider, partitions, rows, settings.number("keys"), conf=conf)
    aims = delay_ms == AIM_DELAY_MS and not (is_join or many)
    share = 1 if aims else 2 if delay_ms == AIM_DELAY_MS else 3
    longest, shortest = settings.number("longest-seconds"), 12.0 if before else 0.0
    pace = Pace(max(2, batches // share), before or (2 if aims else 1), longest, shortest)
    ways = tuple(way for way in settings.names("ways") if way != BESIDE or aims)
    return Situation(load, delay_ms, ways, pace, 1 if is_join or many else settings.number("rounds"))


def measure_all(settings: Settings) -> Iterator[Side]:
    """Every situation that was asked for, a driver for each query and state store."""
    ways = [way for way in settings.names("ways") if way != BESIDE]
    with open_lab(settings["store"]) as lab:
        kinds = groupby(situations(settings), key=lambda one: (one.load.query, one.load.provider))
        for (query, provider), group in kinds:
            with lab.driver(f"{query}-{provider}") as driver:
                for position, one in enumerate(group):
                    if position == 0:
                        small = replace(one.load, partitions=4)
                        warm_up(lab, [way_contender(lab, driver, way, small) for way in ways])
                    where = f"{one.load.where}, {one.delay_ms} ms"
                    sides = [
                        way_contender(lab, driver, way, one.load, one.pace_of(way)) for way in one.ways
                    ]
                    yield from compare(lab, where, sides, one.rounds, one.delay_ms)


ALL_WAYS = "alone,disk,stock,tuned,ours,listener,listener-stock,sink"
ARGUMENTS = (
    Argument("ways", ALL_WAYS, ALL_WAYS, "ways; listener-stock is run with the aims only"),
    Argument("queries", "windowed,join", "windowed", "windowed, total, join"),
    Argument("providers", "hdfs,changelog", "hdfs", "state stores: hdfs, changelog"),
    Argument("partitions", "4,64", "4", "shuffle partitions of the aggregation"),
    Argument("join-partitions", "4", "4", "shuffle partitions of the join"),
    Argument("delays", "0,20,50", "20", "milliseconds added to every request"),
    Argument("batches", "6", "4", "batches a round at 20 ms and 4 partitions; half or a third elsewhere"),
    Argument("rounds", "2", "1", "rounds; one with more than 16 partitions, and for the join"),
    Argument("rows", "100000", "100000", "rows a batch"),
    Argument("keys", "100000", "100000", "keys of the aggregation"),
    Argument(
        "before", "0", "0", "batches before the measured ones, without a delay; then retention is small"
    ),
    Argument("store", "s3", "s3", "where the listener and the sink keep checkpoints: s3 or file"),
    Argument("longest-seconds", "45", "20", "after which a way's turn ends, if it has done a batch"),
)


def variant(name: str, doc: str | None, same: Mapping[str, str], **quick: tuple[str, str]) -> Part:
    """The same measurement for another question: ``same`` values always, ``quick`` ones (full, quick)."""
    others = {**{key: (value, value) for key, value in same.items()}, **quick}
    arguments = (
        Argument(given.name, *others.get(given.name, (given.full, given.quick)), given.meaning)
        for given in ARGUMENTS
    )
    return Part(name, doc, measure_all, tuple(arguments))


PART = Part("side-by-side", __doc__, measure_all, ARGUMENTS)
FILE_MANAGER = variant(
    "file-manager",
    "Spark's own checkpoint, a keyed sum: local disk, S3 with Spark's manager, the tuned one, and ours.",
    {"ways": "alone,stock,tuned,ours", "queries": "total"},
)
HERE = {"queries": "windowed", "delays": "20"}
LISTENER_COST = variant(
    "listener-cost",
    "What the listener costs a query: many short turns with it and without any capture at all.",
    {**HERE, "ways": "disk,listener", "providers": "hdfs", "partitions": "4"},
    batches=("10", "6"),
    rounds=("6", "2"),
)
PURGING = variant(
    "purging",
    "Batches that also purge: past 100 batches with a small retention, each way.",
    {**HERE, "providers": "hdfs", "partitions": "4", "rows": "2000", "keys": "2000", "before": "101"},
    ways=("stock,tuned,ours,listener,sink", "stock,ours"),
    batches=("10", "6"),
    rounds=("1", "1"),
)
COORDINATED = variant(
    "coordinated",
    "Spark's state in the commit with the rows, beside the rows alone and noop with the same state.",
    {**HERE, "ways": "disk,rows only,sink", "providers": "changelog", "rows": "10000"},
    partitions=("4,64", "64"),
    batches=("12", "6"),
)
