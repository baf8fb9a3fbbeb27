"""Two real drivers on one checkpoint location."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tests.support.drivers import outcome
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec

PATIENCE_SECONDS = 200
CONCURRENT = "Multiple streaming"
"""How Spark's error begins that says so."""


def contend(drivers: Sequence[Driver], spec: QuerySpec, wait_seconds: float) -> list[dict[str, Any]]:
    """Start the first driver; when it is idle between two batches, the second on the same location.

    When one has stopped, or both have committed six batches, the rest run two more and are stopped.
    """
    first, second = drivers
    first.start(spec)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len((found := first.poll(spec.name))["committed"]) < 2:
        assert found["active"] and time.monotonic() < deadline, f"the first does not run: {found['error']}"
        time.sleep(0.1)
    time.sleep(wait_seconds)
    second.start(spec)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        results = [driver.poll(spec.name) for driver in drivers]
        if not all(result["active"] for result in results):
            break
        if all(len(result["committed"]) >= 6 for result in results):
            break
        time.sleep(0.1)
    for driver, result in zip(drivers, results, strict=True):
        wanted = len(result["committed"]) + 2
        while (found := driver.poll(spec.name))["active"] and len(found["committed"]) < wanted:
            assert time.monotonic() < deadline, "the survivor does not go on"
            time.sleep(0.1)
    return [driver.call("stop", name=spec.name) for driver in drivers]


def run_by_both(spec: QuerySpec) -> list[int]:
    """Batches for which both drivers ran the sink."""
    return [batch_id for batch_id, pids in outcome.runs(spec).items() if len(pids) > 1]
