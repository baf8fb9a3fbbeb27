"""From the start of a query to its first finished batch, by a driver that has nothing of it in memory.

One driver makes the locations; another, which has run another query to be warm, starts on each of them.
Every start is a run of its own, for which Spark loads all state anew. ``restored`` is a local disk that
was empty: the checkpoint is restored first, and that time counts.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.frame import Settings, Side, in_turns
from benchmarks.lab import Lab, Load, open_lab, query_spec, warm_up, way_contender
from pyspark_checkpoint import restore
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec

RESTORED = "restored"
Start = tuple[float, float, int]
"""Seconds of the restore, from there to the first finished batch, and requests."""


def prepare(lab: Lab, ways: list[str], load: Load, before: int) -> dict[str, QuerySpec]:
    """A location for each way that has done some batches; made without a delay."""
    specs = {}
    lab.delay(0)
    with lab.driver("preparing") as driver:
        for way in ways:
            how = "listener" if way == RESTORED else way
            specs[way] = spec = query_spec(how, load, lab.place, f"cold-{load.provider}-{way}")
            driver.start(spec)
            driver.wait_for(spec.name, before)
            driver.stop(spec)
    return specs


def start(lab: Lab, driver: Driver, way: str, spec: QuerySpec, number: int) -> Start:
    """Start a query on its location, or on what is restored of it, and stop it after a batch."""
    lab.proxy.clear()
    began = restored = time.monotonic()
    run = replace(spec, name=f"{spec.name}-{number}", listen="")
    if way == RESTORED:
        to = lab.home / "restored" / run.name
        restore(spec.listen, str(to), query=spec.name, clone=True, options=dict(lab.place.store_options))
        restored, run = time.monotonic(), replace(run, location=f"file://{to}")
    driver.start(run)
    driver.wait_for(run.name, 1)
    seconds, requests = time.monotonic() - restored, len(lab.requests_of(spec.name))
    driver.stop(run)
    return restored - began, seconds, requests


def side(way: str, where: str, starts: list[Start]) -> Side:
    """All starts of one way."""
    restoring, seconds, requests = zip(*starts, strict=True)
    taken = tuple(round(one + other, 2) for one, other in zip(restoring, seconds, strict=True))
    counted = {"requests": statistics.median(requests)}
    if way == RESTORED:
        counted["s of it restore"] = round(statistics.median(restoring), 2)
    return Side(where, way, taken, "s", counted)


def measure_all(settings: Settings) -> Iterator[Side]:
    """Every way at every delay with one state store after the other, in turns."""
    ways, keys = settings.names("ways"), settings.number("keys")
    for provider in settings.names("providers"):
        load, numbers = Load("windowed", provider, 4, keys, keys), itertools.count()
        with open_lab() as lab:
            specs = prepare(lab, ways, load, settings.number("before"))
            with lab.driver("starting") as driver:
                warm_up(lab, [way_contender(lab, driver, way, load) for way in ways if way != RESTORED])
                for delay_ms in settings.numbers("delays"):
                    lab.delay(delay_ms)
                    starts: dict[str, list[Start]] = defaultdict(list)
                    for _, way in in_turns(ways, settings.number("rounds")):
                        starts[way].append(start(lab, driver, way, specs[way], next(numbers)))
                    where = f"{provider}, {delay_ms} ms"
                    yield from (side(way, where, found) for way, found in starts.items())
