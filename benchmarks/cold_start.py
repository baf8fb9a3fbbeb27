"""From the start of a query to its first finished batch, by a driver that has nothing of it in memory.

One driver makes the locations; another, which has run another query to be warm, starts on each of them.
``restored`` is a local disk that was empty: the checkpoint is restored first, and that time counts.

    python -m benchmarks.cold_start [--quick] [--delays 0,20] [--before 12]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.lab import Lab, open_lab, wait_for, warm_up
from benchmarks.part import Argument, Part, Settings, run_part, tell
from benchmarks.records import Started
from benchmarks.ways import Load, query_spec
from pyspark_checkpoint import restore
from tests.harness.driver import Driver
from tests.harness.queries import QuerySpec

RESTORED = "restored"


def prepare(lab: Lab, ways: list[str], load: Load, before: int, prefix: str) -> dict[str, QuerySpec]:
    """A location for each way that has done some batches; made without a delay."""
    specs = {}
    lab.delay(0)
    with lab.driver("preparing") as driver:
        for way in ways:
            how = "listener" if way == RESTORED else way
            spec = query_spec(how, load, lab.place, f"{prefix}-{way}")
            driver.start(spec)
            wait_for(driver, spec.name, before)
            driver.call("stop", 300, name=spec.name)
            if spec.listen:
                driver.call("flush", 150, name=spec.name, timeout_seconds=120)
                driver.call("unlisten", 150, name=spec.name)
            specs[way] = spec
    return specs


def start(lab: Lab, driver: Driver, way: str, spec: QuerySpec) -> tuple[float, float, int]:
    """Seconds of the restore, seconds from there to the first finished batch, and requests."""
    lab.proxy.clear()
    began = time.monotonic()
    restored = 0.0
    if way == RESTORED:
        to = lab.home / "restored" / spec.name
        restore(spec.listen, str(to), query=spec.name, options=dict(lab.place.store_options))
        restored = time.monotonic() - began
        spec = replace(spec, location=f"file://{to}", listen="")
    began = time.monotonic()
    driver.start(spec)
    wait_for(driver, spec.name, 1)
    seconds = time.monotonic() - began
    requests = len(lab.proxy.requests)
    driver.call("stop", 300, name=spec.name)
    return restored, seconds, requests


def measure_all(settings: Settings) -> Iterator[Started]:
    """Every way at every delay; each location is started once, because then it is warm."""
    ways, keys = settings.names("ways"), settings.number("keys")
    for provider in settings.names("providers"):
        load = Load("windowed", provider, 4, keys, keys)
        with open_lab() as lab:
            delays = settings.numbers("delays")
            made = {
                delay_ms: prepare(lab, ways, load, settings.number("before"), f"cold-{delay_ms}")
                for delay_ms in delays
            }
            with lab.driver("starting") as driver:
                warm_up(lab, driver, ["alone", "stock", "tuned", "ours"], load)
                for delay_ms in delays:
                    lab.delay(delay_ms)
                    for way, spec in made[delay_ms].items():
                        restored, seconds, requests = start(lab, driver, way, spec)
                        tell(f"cold start, {delay_ms} ms, {way}: {restored + seconds:.1f} s")
                        taken = (round(seconds, 2),)
                        yield Started(way, provider, delay_ms, round(restored, 2), taken, requests)


ARGUMENTS = (
    Argument("ways", "alone,stock,tuned,ours,restored", "alone,stock,ours,restored", "ways"),
    Argument("providers", "hdfs,changelog", "hdfs", "state stores"),
    Argument("delays", "0,20,50", "20", "milliseconds added to every request"),
    Argument("before", "12", "6", "batches that a location has done"),
    Argument("keys", "100000", "100000", "rows and keys"),
)
PART = Part(
    "cold-start", (__doc__ or "").partition("\n")[0], ARGUMENTS, measure_all, "benchmarks.cold_start"
)

if __name__ == "__main__":
    run_part(PART, sys.argv[1:])
