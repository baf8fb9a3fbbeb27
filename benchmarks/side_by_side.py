"""Spark's checkpoints on S3, stock and tuned, beside our file manager, the listener and the sink.

One driver runs the same query in each way in turns, on an S3 server behind a proxy that delays every
request and counts it. A second round goes through the ways backwards.

    python -m benchmarks.side_by_side [--quick] [--delays 20] [--partitions 4] [--ways stock,ours] ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.lab import Lab, Pace, Tally, measure, open_lab, warm_up
from benchmarks.part import Argument, Part, Settings, run_part, tell
from benchmarks.records import Cell
from benchmarks.ways import Load, query_spec
from tests.harness.driver import Driver

JOIN_ROWS = 20_000


@dataclass(frozen=True)
class Situation:
    """A load at a delay, and how long each way is measured in it."""

    load: Load
    delay_ms: int
    pace: Pace
    rounds: int


def situations(settings: Settings) -> Iterator[Situation]:
    """Every combination. Many partitions and joins, whose batches take long, have one round."""
    rows, batches = settings.number("rows"), settings.number("batches")
    for query in settings.names("queries"):
        for partitions in settings.numbers("join-partitions" if query == "join" else "partitions"):
            for provider in settings.names("providers"):
                for delay_ms in settings.numbers("delays"):
                    count = min(rows, JOIN_ROWS) if query == "join" else rows
                    load = Load(query, provider, partitions, count, settings.number("keys"))
                    many = partitions > 16
                    pace = Pace(
                        max(2, batches // 2) if many else batches,
                        1 if many else 2,
                        settings.number("longest-seconds"),
                    )
                    once = many or query == "join"
                    yield Situation(load, delay_ms, pace, 1 if once else settings.number("rounds"))


def measure_situation(
    lab: Lab, driver: Driver, situation: Situation, ways: list[str], prefix: str
) -> list[Cell]:
    """Every way in one situation, in turns."""
    lab.delay(situation.delay_ms)
    tallies = {way: Tally() for way in ways}
    for turn in range(situation.rounds):
        for way in ways if turn % 2 == 0 else reversed(ways):
            spec = query_spec(way, situation.load, lab.place, f"{prefix}-{way}-{turn}")
            measure(lab, driver, spec, situation.pace, tallies[way])
            cell = tallies[way].cell(way, situation.load, situation.delay_ms)
            tell(f"{cell.situation} {way}: p50 {cell.p50:.0f} ms, {cell.per_batch:.1f} requests a batch")
    return [tally.cell(way, situation.load, situation.delay_ms) for way, tally in tallies.items()]


def measure_all(settings: Settings) -> Iterator[Cell]:
    """Every situation that was asked for, one driver for all."""
    ways = settings.names("ways")
    with open_lab() as lab, lab.driver() as driver:
        warmed: set[tuple[str, str]] = set()
        for number, situation in enumerate(situations(settings)):
            load = situation.load
            if (load.query, load.provider) not in warmed:
                warm_up(lab, driver, ways, Load(load.query, load.provider, 4, load.rows, load.keys))
                warmed.add((load.query, load.provider))
            yield from measure_situation(lab, driver, situation, ways, f"s{number}")


ARGUMENTS = (
    Argument(
        "ways", "alone,stock,tuned,ours,listener,sink", "alone,stock,tuned,ours,listener,sink", "ways"
    ),
    Argument("queries", "windowed,join", "windowed", "windowed, total, join"),
    Argument("providers", "hdfs,changelog", "hdfs", "state stores: hdfs, changelog"),
    Argument("partitions", "4,64", "4", "shuffle partitions of the aggregation"),
    Argument("join-partitions", "4", "4", "shuffle partitions of the join"),
    Argument("delays", "0,20,50", "20", "milliseconds added to every request"),
    Argument("batches", "6", "4", "measured batches a round; half of them with more than 16 partitions"),
    Argument("rounds", "2", "1", "rounds; one with more than 16 partitions, and for the join"),
    Argument("rows", "100000", "100000", "rows a batch"),
    Argument("keys", "100000", "100000", "keys of the aggregation"),
    Argument("longest-seconds", "40", "20", "after which a way's turn ends, if it has done a batch"),
)


def arguments_with(others: Mapping[str, tuple[str, str]]) -> tuple[Argument, ...]:
    """The same arguments for another part, some with other values for a full and a quick run."""
    return tuple(
        Argument(given.name, *others.get(given.name, (given.full, given.quick)), given.meaning)
        for given in ARGUMENTS
    )


PART = Part(
    "side-by-side", (__doc__ or "").partition("\n")[0], ARGUMENTS, measure_all, "benchmarks.side_by_side"
)

if __name__ == "__main__":
    run_part(PART, sys.argv[1:])
