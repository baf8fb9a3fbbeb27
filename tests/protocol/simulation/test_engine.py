"""The searches themselves: they find a planted race, tell it the same way twice, and shorten it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pyspark_checkpoint.store.base import Version
from pyspark_checkpoint.store.memory import MemoryStore
from tests.protocol.simulation.explore import explore
from tests.protocol.simulation.port import Op, perform
from tests.protocol.simulation.process import Actor, Context
from tests.protocol.simulation.schedule import RandomChooser, World, replay, run, shrink
from tests.protocol.simulation.shelf import apply_op
from tests.protocol.simulation.truth import Truth


def _counter(safe: bool) -> Actor:
    """Adds one to a counter, by compare-and-swap if ``safe``, and looks whether nobody undid it."""

    def program(context: Context) -> None:
        before = context.store.read("count")
        value = int(before.data) + 1
        context.store.put("count", b"%d" % value, if_match=before.version if safe else None)
        if int(context.store.get("count")) < value:
            context.emit("bad", "the counter fell")

    return Actor("counter", program)


def _again(safe: bool) -> Actor:
    """Adds one twice."""

    def program(context: Context) -> None:
        _counter(safe).program(context)
        _counter(safe).program(context)

    return Actor("again", program)


_START = {"count": b"0"}


def test_exhaustive_search_finds_a_lost_update_with_a_shortest_schedule() -> None:
    """Reading, stalling while another adds twice, and writing makes the counter fall: eight calls."""
    result = explore(_START, Truth(), [_counter(False), _again(False)])
    assert result.violation is not None
    assert "the counter fell" in result.violation
    assert len(result.schedule) == 8, result


def test_exhaustive_search_finds_nothing_where_nothing_is() -> None:
    """With compare-and-swap the loser ends with ``Conflict``, which surprises nobody here."""
    actors = [
        Actor("a", _quiet(_counter(True))),
        Actor("b", _quiet(_again(True))),
    ]
    result = explore(_START, Truth(), actors, faults=1)
    assert result.violation is None, result
    assert result.complete


def _quiet(actor: Actor):  # type: ignore[no-untyped-def]
    from pyspark_checkpoint.errors import StoreError

    def program(context: Context) -> None:
        try:
            actor.program(context)
        except StoreError:
            return

    return program


def test_random_search_finds_it_too_and_its_schedule_replays_and_shrinks() -> None:
    """The same decisions give the same lines; the shortened schedule still fails."""
    world = World(_START, Truth(), (_counter(False), _again(False), _counter(False)))
    for seed in range(200):
        outcome = run(world, RandomChooser(seed), trace=True)
        if outcome.violation is not None:
            break
    assert outcome.violation is not None
    again = replay(world, outcome.decisions, trace=True)
    assert (again.violation, again.lines) == (outcome.violation, outcome.lines)
    short = shrink(world, outcome.decisions)
    assert replay(world, short).violation is not None
    assert len(short) <= 8


def test_a_crashed_process_never_reaches_the_store_again() -> None:
    """Code that cleans up when it is thrown out of a call has no store any more."""

    def program(context: Context) -> None:
        try:
            context.store.put("first", b"1")
        finally:
            context.store.put("second", b"2")

    for seed in range(100):
        world = World({}, Truth(), (Actor("a", program),), faults=1)
        outcome = run(world, RandomChooser(seed), trace=True)
        if any("crash" in line for line in outcome.lines):
            assert not any("second" in line and "ok" in line for line in outcome.lines) or any(
                "second" in line and "crash" in line for line in outcome.lines
            )


@pytest.mark.parametrize("seed", range(20))
def test_the_shelf_answers_as_the_memory_store_does(seed: int) -> None:
    """The store of the exhaustive search and ``MemoryStore`` agree on values, errors and content."""
    rnd = random.Random(seed)
    memory = MemoryStore()
    shelf: dict[str, bytes] = {}
    versions: dict[str, str] = {}
    for _ in range(200):
        op = _random_op(rnd, sorted(versions))
        new, shelf_answer = apply_op(shelf, op)
        real = replace(op, if_match=versions[op.if_match]) if op.if_match is not None else op
        memory_answer = perform(memory, real)
        shelf = dict(new)
        assert shelf_answer.error == memory_answer.error, op
        if isinstance(shelf_answer.value, Version):
            assert isinstance(memory_answer.value, Version)
            versions[shelf_answer.value.token] = memory_answer.value.token
        elif isinstance(shelf_answer.value, bytes):
            assert shelf_answer == memory_answer
        assert {info.key for info in memory.list()} == set(shelf)
    assert all(memory.get(key) == data for key, data in shelf.items())


def _random_op(rnd: random.Random, versions: list[str]) -> Op:
    key = rnd.choice(["a/1", "a/2", "b/1"])
    # content that never repeats: an ETag-like version is then as unique as a counter
    data = b"%d" % rnd.getrandbits(60)
    match rnd.choice(["put", "create", "swap", "read", "get", "head", "list", "delete"]):
        case "put":
            return Op("put", key, data)
        case "create":
            return Op("put", key, data, if_absent=True)
        case "swap" if versions:
            return Op("put", key, data, if_match=rnd.choice(versions))
        case "list":
            return Op("list", "a/", after=rnd.choice([None, "a/1"]), limit=rnd.choice([None, 1]))
        case verb:
            return Op(verb if verb != "swap" else "read", key)
