"""Thousands of seeded schedules of many actors. ``SEEDS`` says how many, ``FIRST_SEED`` from where.

A failure prints its seed and the shortest schedule that was found to fail; the same seed fails again.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.protocol.simulation.aftermath import aftermath
from tests.protocol.simulation.memo import remembered
from tests.protocol.simulation.mix import make_world
from tests.protocol.simulation.schedule import RandomChooser, replay, run, shrink

DAILY_SEEDS = 10_000
SEEDS = int(os.environ.get("SEEDS", DAILY_SEEDS // 10))
FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
THOROUGH = SEEDS > DAILY_SEEDS
_WORKERS = 2
_CHUNK = 250


def run_seeds(first: int, count: int) -> tuple[int, list[int]]:
    """Run a range of seeds; how many steps that were, and the seeds that failed."""
    logging.disable(logging.CRITICAL)
    steps, failed = 0, []
    with remembered():
        for seed in range(first, first + count):
            outcome = run(make_world(seed), RandomChooser(seed), afterwards=aftermath)
            steps += len(outcome.decisions)
            if outcome.violation is not None:
                failed.append(seed)
    return steps, failed


@pytest.mark.timeout(0)
def test_no_schedule_breaks_a_promise() -> None:
    """Writers, pruners, collectors, savepoints, rollbacks, deletions, readers; stalls, crashes, losses.

    Afterwards a new run takes over, commits and tidies up, and exactly the live set is left.
    """
    chunks = [(first, min(_CHUNK, FIRST_SEED + SEEDS - first)) for first in _firsts()]
    steps = 0
    with ProcessPoolExecutor(_WORKERS, multiprocessing.get_context("spawn")) as pool:
        for done, failed in pool.map(run_seeds, *zip(*chunks, strict=True)):
            steps += done
            if failed:
                pool.shutdown(cancel_futures=True)
                pytest.fail(describe_failure(failed[0]))
    assert steps > 20 * SEEDS, "the schedules do next to nothing"


def _firsts() -> range:
    return range(FIRST_SEED, FIRST_SEED + SEEDS, _CHUNK)


def describe_failure(seed: int) -> str:
    """The seed, what broke, and the shortest schedule found that breaks it."""
    world = make_world(seed)
    whole = run(world, RandomChooser(seed), afterwards=aftermath)
    short = shrink(world, whole.decisions, afterwards=aftermath)
    last = replay(world, short, trace=True, afterwards=aftermath)
    lines = "\n".join(f"    {line}" for line in last.lines)
    again = f"again: FIRST_SEED={seed} SEEDS=1 pytest tests/protocol/simulation/test_schedules.py"
    title = f"seed {seed}: {whole.violation}\nshortened to {len(short)} steps: {last.violation}"
    return f"{title}\n{lines}\n{again}"


def test_a_seed_is_the_same_schedule_every_time() -> None:
    """What failed once can be looked at as often as one likes."""
    for seed in range(40):
        first = run(make_world(seed), RandomChooser(seed), trace=True, afterwards=aftermath)
        second = run(make_world(seed), RandomChooser(seed), trace=True, afterwards=aftermath)
        assert (first.decisions, first.lines) == (second.decisions, second.lines)
