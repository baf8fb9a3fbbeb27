"""Two drivers on one checkpoint location, with the stock manager, the tuned one, and ours: as found.

python -m benchmarks.two_drivers [--quick] [--rounds 3] [--ways stock,tuned,ours]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.frame import Argument, Contest, Part, Settings, tell
from benchmarks.lab import Lab, Load, open_lab, query_spec
from tests.support.drivers import outcome
from tests.support.drivers.contention import CONCURRENT, contend, run_by_both
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec, total_after


def contest(lab: Lab, drivers: Sequence[Driver], way: str, name: str, load: Load, wait: float) -> Contest:
    """The first driver runs; the second one starts on the same location."""
    spec = replace(query_spec(way, load, lab.place, name), format="", options={})
    results = contend(drivers, spec, wait)
    both = set(results[0]["committed"]) & set(results[1]["committed"])
    errors = [result["error"] for result in results if result["error"]]
    stopped = sum(CONCURRENT in error for error in errors)
    others = (error.strip().partition("\n")[0][:100] for error in errors if CONCURRENT not in error)
    run_twice, committed_twice = tuple(sorted(run_by_both(spec))), tuple(sorted(both))
    return Contest(way, run_twice, committed_twice, stopped, wrong_batches(spec), tuple(others))


def wrong_batches(spec: QuerySpec) -> int:
    """How many batches of a ``total`` query do not have the sums that they must have."""
    wrong = 0
    for batch_id, lines in outcome.batches(spec).items():
        rows = {row["key"]: row["sum"] for row in map(json.loads, lines)}
        wrong += rows != total_after(batch_id, spec.rows)
    return wrong


def measure_all(settings: Settings) -> Iterator[Contest]:
    """Some rounds of each way, in turns; the second driver comes at another moment each time."""
    load = Load("total", "hdfs", 2, 20, 20, settings.number("interval-ms"))
    with open_lab() as lab:
        lab.delay(settings.number("delay"))
        with lab.driver("first") as first, lab.driver("second") as second:
            for turn in range(settings.number("rounds")):
                for way in settings.names("ways"):
                    found = contest(lab, (first, second), way, f"two-{way}-{turn}", load, 0.1 + 0.3 * turn)
                    tell(f"two drivers, {way}: committed by both {len(found.committed_by_both)}")
                    yield found


ARGUMENTS = (
    Argument("ways", "stock,tuned,ours", "stock,tuned,ours", "ways"),
    Argument("rounds", "2", "1", "contests a way"),
    Argument("interval-ms", "5000", "5000", "between two batches"),
    Argument("delay", "50", "50", "milliseconds added to every request"),
)
PART = Part("two-drivers", __doc__, measure_all, ARGUMENTS)

if __name__ == "__main__":
    PART.run(sys.argv[1:])
