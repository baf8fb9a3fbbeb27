"""Spark's checkpoints on S3, stock and tuned, beside our file manager, the listener and the sink.

One driver runs the same query in each way in turns, on an S3 server behind a proxy that delays every
request and counts it. A second round goes through the ways backwards.

    python -m benchmarks.side_by_side [--quick] [--delays 20] [--partitions 4] [--ways stock,ours] ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, product

from benchmarks.frame import Argument, Cell, Part, Settings, in_turns, tell
from benchmarks.lab import LISTENERS, Lab, Load, Pace, Tally, measure, open_lab, query_spec, warm_up
from benchmarks.report import run_and_show
from tests.support.drivers.driver import Driver

JOIN_ROWS = 20_000
AIM_DELAY_MS = 20
"""The delay of the aims: where most batches are run, and the listener is shown with both managers."""
BESIDE = "listener-stock"
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
        return replace(self.pace, shortest_seconds=CAPTURE_SECONDS / share)


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
    load = Load(
        query, provider, partitions, min(rows, JOIN_ROWS) if is_join else rows, settings.number("keys")
    )
    aims = delay_ms == AIM_DELAY_MS and not (is_join or many)
    share = 1 if aims else 2 if delay_ms == AIM_DELAY_MS else 3
    pace = Pace(max(2, batches // share), 2 if aims else 1, settings.number("longest-seconds"))
    ways = tuple(way for way in settings.names("ways") if way != BESIDE or aims)
    return Situation(load, delay_ms, ways, pace, 1 if is_join or many else settings.number("rounds"))


def measure_situation(
    lab: Lab, driver: Driver, situation: Situation, prefix: str, failed: list[str]
) -> list[Cell]:
    """Every way in one situation, in turns; one that fails is noted, and the others go on."""
    lab.delay(situation.delay_ms)
    load, tallies = situation.load, {way: Tally() for way in situation.ways}
    for turn, way in in_turns(situation.ways, situation.rounds):
        if way not in tallies:
            continue
        spec = query_spec(way, load, lab.place, f"{prefix}-{way}-{turn}")
        try:
            measure(lab, driver, spec, situation.pace_of(way), tallies[way])
        except Exception as error:  # noqa: BLE001 - the other ways are measured all the same
            where = f"{way}, {load.query}, {load.partitions} partitions, {load.provider}"
            cause = str(error).partition("\n")[0]
            failed.append(f"{where}, {situation.delay_ms} ms: {cause}")
            tell(failed[-1])
            del tallies[way]
            continue
        cell = tallies[way].cell(way, load, situation.delay_ms)
        tell(f"{cell.situation} {way}: p50 {cell.p50:.0f} ms, {cell.per_batch:.1f} requests a batch")
    return [tally.cell(way, load, situation.delay_ms) for way, tally in tallies.items()]


def measure_all(settings: Settings) -> Iterator[Cell]:
    """Every situation that was asked for, a driver for each query and state store.

    What failed is an error at the end.
    """
    ways = [way for way in settings.names("ways") if way != BESIDE]
    failed: list[str] = []
    numbered = list(enumerate(situations(settings)))
    with open_lab(settings["store"]) as lab:
        kinds = groupby(numbered, key=lambda one: (one[1].load.query, one[1].load.provider))
        for (query, provider), group in kinds:
            with lab.driver(f"{query}-{provider}") as driver:
                for position, (number, situation) in enumerate(group):
                    if position == 0:
                        load = situation.load
                        warm_up(lab, driver, ways, Load(query, provider, 4, load.rows, load.keys))
                    yield from measure_situation(lab, driver, situation, f"s{number}", failed)
    if failed:
        raise RuntimeError("; ".join(failed))


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

if __name__ == "__main__":
    run_and_show(PART)
