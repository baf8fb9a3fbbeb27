"""Kill a driver again and again until its queries are done all the same."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class CrashReport:
    """How often a driver was killed, and how far all queries together were each time."""

    kills: int
    batches_at_kill: list[int]


def run_with_kills(
    start: Callable[[], Driver],
    specs: Sequence[QuerySpec],
    *,
    kills: int,
    seed: int,
    settle: Callable[[], None] = lambda: None,
    done: Callable[[Sequence[QuerySpec]], int] | None = None,
    timeout_seconds: float = 240.0,
) -> CrashReport:
    """Run the queries to their ends, with SIGKILL at random moments before that.

    ``start`` makes a driver; ``settle`` is called between two lives, for what a test does to the
    location meanwhile. When to kill is counted in batches of all queries, so that a slow machine
    kills as often in the middle of the work as a fast one; a random part of a second comes on top.
    ``done`` counts the batches of all queries; by default the files in their results.
    """
    done = done or _done
    chance = random.Random(seed)
    at_kill: list[int] = []
    total = sum(spec.batches for spec in specs)
    for number in range(kills):
        share = (total - done(specs)) // (kills - number + 1)
        driver = start()
        try:
            driver.wait_ready()
            for spec in specs:
                driver.send("start", spec=spec.as_dict())
            target = done(specs) + chance.randint(1, max(1, 2 * share - 1))
            with suppress(AssertionError):
                wait_until(partial(_are_at, done, specs, min(target, total)), "the batch", timeout_seconds)
            time.sleep(chance.random() * 0.5)
        finally:
            driver.kill()
        at_kill.append(done(specs))
        settle()
    with start() as driver:
        driver.run(*specs, timeout_seconds=timeout_seconds)
    return CrashReport(kills, at_kill)


def _are_at(done: Callable[[Sequence[QuerySpec]], int], specs: Sequence[QuerySpec], target: int) -> bool:
    return done(specs) >= target


def _done(specs: Sequence[QuerySpec]) -> int:
    return sum(len(list(Path(spec.results).glob("*.json"))) for spec in specs)
