"""The clock for tests: no look at the machine, and ids that are the same in every run."""

from __future__ import annotations

import uuid

from pyspark_checkpoint.testing.manual_clock import START_MS, ManualClock


def test_time_moves_only_by_sleep_or_by_the_step() -> None:
    """Both clocks of it; and each wait is kept."""
    clock = ManualClock()
    clock.sleep(1.5)
    assert (clock.now_ms(), clock.now_ms(), clock.monotonic_seconds()) == (
        START_MS + 1500,
        START_MS + 1500,
        1.5,
    )
    assert clock.slept == [1.5]
    backwards = ManualClock(step_ms=-2)
    assert (backwards.now_ms(), backwards.now_ms()) == (START_MS - 2, START_MS - 4)


def test_ids_are_the_same_in_every_run_and_differ_between_owners() -> None:
    """UUIDs are of version 7, carry the time, and sort in the order in which they were made."""

    def ids(owner: str) -> list[str]:
        clock = ManualClock(owner)
        return [clock.uuid7() for _ in range(300)] + [clock.nonce()]

    assert ids("a") == ids("a")
    assert not set(ids("a")) & set(ids("b"))
    made = ids("a")[:-1]
    assert sorted(made) == made
    assert {uuid.UUID(one).version for one in made} == {7}
    assert {uuid.UUID(one).int >> 80 for one in made} == {START_MS}
    nonce = ids("a")[-1]
    assert len(nonce) == 32 and int(nonce, 16) >= 0
