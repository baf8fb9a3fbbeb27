"""A clock for tests: nothing in it depends on the machine."""

from __future__ import annotations

import uuid
import zlib
from itertools import count

from pyspark_checkpoint.clock import uuid7_from

START_MS = 1_700_000_000_000


class ManualClock:
    """Time moves when somebody sleeps, and the n-th id is the same in every run. Threads may share it.

    ``slept`` has every wait, in order.
    """

    def __init__(
        self,
        owner: int | str = 0,
        *,
        start_ms: int = START_MS,
        step_ms: int = 0,
        jitter: float = 0.5,
    ) -> None:
        """``owner`` tells ids of several clocks apart; each look at the time moves it by ``step_ms``."""
        self.slept: list[float] = []
        self._owner = owner if isinstance(owner, int) else zlib.crc32(owner.encode())
        self._now_ms = float(start_ms)
        self._step_ms = step_ms
        self._monotonic = 0.0
        self._jitter = jitter
        self._made = count(1)

    def now_ms(self) -> int:
        self._now_ms += self._step_ms
        return int(self._now_ms)

    def monotonic_seconds(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._monotonic += seconds
        self._now_ms += seconds * 1000

    def nonce(self) -> str:
        return f"{self._owner:08x}{next(self._made):024x}"

    def uuid7(self) -> str:
        bits = (next(self._made) << 32) | self._owner
        return str(uuid.UUID(int=uuid7_from(int(self._now_ms), bits)))

    def jitter(self) -> float:
        return self._jitter
