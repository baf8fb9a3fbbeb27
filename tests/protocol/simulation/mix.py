"""Random mixes of up to ten actors: a seed gives a beginning, actors, faults, and a schedule."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from pyspark_checkpoint.testing.manual_clock import START_MS
from tests.protocol.simulation.beginning import Beginning, beginning
from tests.protocol.simulation.clock import DAY_MS
from tests.protocol.simulation.keepers import collector, deleter, pruner, roller, savepoint, sealer, unsave
from tests.protocol.simulation.process import Actor
from tests.protocol.simulation.readers import (
    copier,
    epoch_reader,
    newest_reader,
    number_reader,
    recoverer,
    verifier,
)
from tests.protocol.simulation.schedule import World
from tests.protocol.simulation.writers import keeping_writer, writer

SKEWS = (0, 0, 60_000, -DAY_MS, DAY_MS)
PLANS = ("e", "ee", "eee", "er", "ere", "es", "re", "s", "eesr")
Factory = Callable[[random.Random, Beginning, int], Actor]


def make_world(seed: int) -> World:
    """The world of a seed."""
    rnd = random.Random(seed)
    head = rnd.choice((0, 1, 2, 3, 4))
    begin = _beginning(rnd, head)
    actors = [_stalled(rnd, begin, head)] if head and rnd.random() < 0.7 else []
    count = rnd.randint(2, 4) if rnd.random() < 0.6 else rnd.randint(5, 9)
    actors += [make(rnd, begin, head) for make in rnd.sample(_POOL, count)]
    return World(
        begin.objects,
        begin.truth,
        tuple(replace(actor, retries=rnd.random() < 0.5, skew_ms=rnd.choice(SKEWS)) for actor in actors),
        faults=rnd.choice((0, 1, 3, 8)),
        page=rnd.choice((None, 3)),
        descending=rnd.random() < 0.5,
    )


def _beginning(rnd: random.Random, head: int) -> Beginning:
    floor = rnd.choice((1, 1, max(head, 1)))
    return beginning(
        head,
        floor=floor,
        latest=rnd.choice((1, head or 1, max(1, head - 1))),
        pins=rnd.choice(((), (("old", 1),))) if head else (),
        depth=rnd.choice((2, 3, 5)),
        without_latest=rnd.random() < 0.2,
    )


def _stalled(rnd: random.Random, begin: Beginning, head: int) -> Actor:
    return writer(
        "A",
        rnd.choice(PLANS),
        knows=(begin, head),
        depth=rnd.choice((2, 5)),
        settle_seconds=rnd.choice((0.0, 120.0)),
    )


def _writer(run_id: str) -> Factory:
    def make(rnd: random.Random, begin: Beginning, head: int) -> Actor:
        return writer(
            run_id,
            rnd.choice(PLANS),
            claims=rnd.random() < 0.8,
            forgets=rnd.random() < 0.15,
            depth=rnd.choice((1, 2, 5)),
            settle_seconds=rnd.choice((0.0, 120.0)),
            step_ms=rnd.choice((1, 1000, -1000)),
        )

    return make


_POOL: tuple[Factory, ...] = (
    _writer("B"),
    _writer("C"),
    _writer("D"),
    lambda rnd, begin, head: keeping_writer(
        "K", rnd.randint(2, 4), keep=rnd.choice((1, 2)), depth=rnd.choice((1, 2, 5))
    ),
    lambda rnd, begin, head: keeping_writer("L", 2, keep=1),
    lambda rnd, begin, head: pruner(rnd.choice((1, 2)), name="P", times=rnd.choice((1, 2))),
    lambda rnd, begin, head: pruner(1, name="Q"),
    lambda rnd, begin, head: pruner(rnd.choice((None, 2)), newer_than_ms=START_MS - 97_000, name="age"),
    lambda rnd, begin, head: savepoint("sp", rnd.randint(1, head + 2)),
    lambda rnd, begin, head: savepoint("sp2", rnd.choice((None, rnd.randint(1, head + 2)))),
    lambda rnd, begin, head: savepoint("old2", 1),
    lambda rnd, begin, head: unsave("old"),
    lambda rnd, begin, head: unsave("sp"),
    lambda rnd, begin, head: roller("R", rnd.randint(1, head + 1)),
    lambda rnd, begin, head: roller("S", 1),
    lambda rnd, begin, head: deleter(rnd.randint(1, head + 1)),
    lambda rnd, begin, head: deleter(rnd.randint(1, head + 1)),
    lambda rnd, begin, head: collector(rnd.choice((1, 2))),
    lambda rnd, begin, head: number_reader(rnd.randint(1, head + 2)),
    lambda rnd, begin, head: epoch_reader(rnd.randint(1, head + 2)),
    lambda rnd, begin, head: sealer(rnd.randint(1, 2)),
    lambda rnd, begin, head: sealer(1),
    lambda rnd, begin, head: recoverer(),
    lambda rnd, begin, head: verifier(),
    lambda rnd, begin, head: copier(),
    lambda rnd, begin, head: newest_reader(2),
    lambda rnd, begin, head: newest_reader(1),
)
