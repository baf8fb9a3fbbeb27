"""Two real drivers on one checkpoint location."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.support.drivers import outcome
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 200
CONCURRENT = "Multiple streaming"
"""How Spark's error begins that says so."""


def contend(drivers: Sequence[Driver], spec: QuerySpec, wait_seconds: float) -> list[dict[str, Any]]:
    """Start the first driver; when it is idle between two batches, the second on the same location.

    When one has stopped, or both have committed six batches, the rest run two more and are stopped.
    """
    first, second = drivers
    first.start(spec)

    def runs() -> bool:
        found = first.poll(spec.name)
        assert found["active"], f"the first does not run: {found['error']}"
        return len(found["committed"]) >= 2

    def is_decided() -> bool:
        found = [driver.poll(spec.name) for driver in drivers]
        return not all(one["active"] for one in found) or all(len(one["committed"]) >= 6 for one in found)

    def is_done(driver: Driver, wanted: int) -> bool:
        found = driver.poll(spec.name)
        return not found["active"] or len(found["committed"]) >= wanted

    _wait(runs, "two batches of the first")
    time.sleep(wait_seconds)
    second.start(spec)
    _wait(is_decided, "which of the two goes on")
    for driver in drivers:
        wanted = len(driver.poll(spec.name)["committed"]) + 2
        _wait(partial(is_done, driver, wanted), "that the survivor goes on")
    return [driver.call("stop", name=spec.name) for driver in drivers]


_wait = partial(wait_until, timeout_seconds=PATIENCE_SECONDS, pause_seconds=0.1)


def run_by_both(spec: QuerySpec) -> list[int]:
    """Batches for which both drivers ran the sink."""
    return [batch_id for batch_id, pids in outcome.runs(spec).items() if len(pids) > 1]
