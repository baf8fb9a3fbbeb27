"""A clock whose time and ids depend on nothing but its owner and how often it was asked."""

from __future__ import annotations

import uuid

from pyspark_checkpoint.clock import uuid7_from
from pyspark_checkpoint.testing.manual_clock import START_MS, ManualClock

DAY_MS = 24 * 3600 * 1000


class SimulatedClock(ManualClock):
    """The clock of one actor: equal histories of one actor see equal times, nonces and uuids.

    ``skew_ms`` sets it apart from the others, and a negative ``step_ms`` makes it run backwards.
    """

    def __init__(self, owner: int, *, skew_ms: int = 0, step_ms: int = 1) -> None:
        super().__init__(owner, start_ms=START_MS + skew_ms, step_ms=step_ms)
        self._id = owner

    def monotonic_seconds(self) -> float:
        """Seconds that rise with each look and each sleep."""
        self._monotonic += 0.001
        return self._monotonic

    def uuid7(self) -> str:
        """Made of the owner and a counter alone: whenever an actor asks, it gets the same."""
        return str(uuid.UUID(int=uuid7_from(START_MS, (self._id << 40) | next(self._made))))
