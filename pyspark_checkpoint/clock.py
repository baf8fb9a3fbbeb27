"""Time and chance: the only module that reads a clock or makes an id.

Everything else receives its ids and times from here, so that a simulation can replace them.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Where a component gets its time and its ids from."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, for people and for age; never for ordering."""

    def monotonic_seconds(self) -> float:
        """Seconds that never go back, for time limits."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def nonce(self) -> str:
        """32 hex digits that nobody else has made."""

    def uuid7(self) -> str:
        """A fresh UUID version 7; those made by one process sort in the order they were made."""

    def jitter(self) -> float:
        """A random number from 0 up to 1."""


_uuid7_lock = threading.Lock()


def _renew_uuid7_lock() -> None:
    """Give a forked child a lock that no thread of its parent holds."""
    global _uuid7_lock  # noqa: PLW0603
    _uuid7_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_uuid7_lock)


class SystemClock:
    """The machine's clock and its random source. Safe across threads, and in a child after a fork."""

    def __init__(self) -> None:
        self._last_uuid7 = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def nonce(self) -> str:
        return secrets.token_hex(16)

    def uuid7(self) -> str:
        with _uuid7_lock:
            value = uuid7_from(self.now_ms(), secrets.randbits(74))
            if value <= self._last_uuid7:
                value = uuid7_from((self._last_uuid7 >> 80) + 1, secrets.randbits(74))
            self._last_uuid7 = value
        return str(uuid.UUID(int=value))

    def jitter(self) -> float:
        return secrets.randbelow(1 << 30) / (1 << 30)


def uuid7_from(timestamp_ms: int, random_bits: int) -> int:
    """Lay out a UUID version 7 (RFC 9562): 48 bits of time, version, 12 + 62 random bits."""
    value = (timestamp_ms & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76
    value |= ((random_bits >> 62) & 0xFFF) << 64
    value |= 0b10 << 62
    return value | (random_bits & ((1 << 62) - 1))


SYSTEM_CLOCK: Clock = SystemClock()


def now_ns() -> int:
    """Nanoseconds since 1970, for marking files so that two of them differ; never for ordering."""
    return time.time_ns()
