"""A clock that only moves when somebody sleeps, and that counts nonces."""

from __future__ import annotations


class FakeClock:
    """Time is what was slept; jitter is always the largest."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.nonces = 0

    def now_ms(self) -> int:
        return int(sum(self.slept) * 1000)

    def monotonic_seconds(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def nonce(self) -> str:
        self.nonces += 1
        return f"nonce-{self.nonces}"

    def uuid7(self) -> str:
        self.nonces += 1
        return f"00000000-0000-7000-8000-{self.nonces:012d}"

    def jitter(self) -> float:
        return 1.0
