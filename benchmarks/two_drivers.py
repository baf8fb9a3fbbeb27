"""Two drivers on one checkpoint location, with the stock manager, the tuned one, and ours: as found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.frame import Settings, Side, in_turns
from benchmarks.lab import Load, open_lab, query_spec
from tests.support.drivers import outcome
from tests.support.drivers.contention import CONCURRENT, contend, run_by_both
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec, total_after


def contest(drivers: Sequence[Driver], spec: QuerySpec, wait: float) -> dict[str, int]:
    """The first driver runs; the second one starts on the same location. Why it ended otherwise is told."""
    results = contend(drivers, spec, wait)
    both = set(results[0]["committed"]) & set(results[1]["committed"])
    errors = [result["error"] for result in results if result["error"]]
    others = [error.strip().partition("\n")[0][:100] for error in errors if CONCURRENT not in error]
    return {
        "batches run by both": len(run_by_both(spec)),
        "committed by both": len(both),
        "drivers stopped": len(errors) - len(others),
        "wrong batches": wrong_batches(spec),
        **Counter(others),
    }


def wrong_batches(spec: QuerySpec) -> int:
    """How many batches of a ``total`` query do not have the sums that they must have."""
    wrong = 0
    for batch_id, lines in outcome.batches(spec).items():
        rows = {row["key"]: row["sum"] for row in map(json.loads, lines)}
        wrong += rows != total_after(batch_id, spec.rows)
    return wrong


def measure_all(settings: Settings) -> Iterator[Side]:
    """Some rounds of each way, in turns; the second driver comes at another moment each time."""
    load = Load("total", "hdfs", 2, 20, 20, settings.number("interval-ms"))
    with open_lab() as lab:
        lab.delay(settings.number("delay"))
        with lab.driver("first") as first, lab.driver("second") as second:
            found: dict[str, Counter[str]] = {way: Counter() for way in settings.names("ways")}
            for turn, way in in_turns(found, settings.number("rounds")):
                spec = query_spec(way, load, lab.place, f"two-{way}-{turn}")
                spec = replace(spec, format="", options={})
                found[way].update(contest((first, second), spec, 0.1 + 0.3 * turn))
    for way, counts in found.items():
        yield Side(f"{settings['rounds']} contests", way, counts=dict(counts))
