"""A clock whose time and ids depend on nothing but its owner and how often it was asked."""

from __future__ import annotations

import uuid

from pyspark_checkpoint.clock import uuid7_from

DAY_MS = 24 * 3600 * 1000
START_MS = 1_700_000_000_000


class SimulatedClock:
    """The clock of one actor: equal histories of one actor see equal times, nonces and uuids.

    ``skew_ms`` sets it apart from the others, and a negative ``step_ms`` makes it run backwards.
    """

    def __init__(self, owner: int, *, skew_ms: int = 0, step_ms: int = 1) -> None:
        self._owner = owner
        self._now_ms = START_MS + skew_ms
        self._step_ms = step_ms
        self._monotonic = 0.0
        self._made = 0

    def now_ms(self) -> int:
        """The owner's idea of the time; each look moves it."""
        self._now_ms += self._step_ms
        return self._now_ms

    def monotonic_seconds(self) -> float:
        """Seconds that rise with each look and each sleep."""
        self._monotonic += 0.001
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Let the owner's time pass; who runs next is not decided here."""
        self._monotonic += seconds
        self._now_ms += int(seconds * 1000)

    def nonce(self) -> str:
        """32 hex digits: the owner and a counter."""
        self._made += 1
        return f"{self._owner:08x}{self._made:024x}"

    def uuid7(self) -> str:
        """A valid UUID version 7 made of the owner and a counter."""
        self._made += 1
        return str(uuid.UUID(int=uuid7_from(START_MS, (self._owner << 40) | self._made)))

    def jitter(self) -> float:
        """Always the middle."""
        return 0.5
