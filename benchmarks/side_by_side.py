"""Spark's checkpoints on S3, stock and tuned, beside our file manager, the listener and the sink.

One driver runs the same query in each way in turns, on an S3 server behind a proxy that delays every
request and counts it. A second round goes through the ways backwards.
``parts.toml`` has variants, which ask other questions of the same measurement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product

from benchmarks.frame import Settings, Side
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
