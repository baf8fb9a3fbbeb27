"""A clock whose time and ids are the same in every run."""

from __future__ import annotations

import hashlib
import threading
import uuid

from pyspark_checkpoint.clock import uuid7_from


class FixedClock:
    """Counts: the n-th id is always the same. Time stands still unless it is moved by ``sleep``."""

    def __init__(self, seed: str = "fixed", start_ms: int = 1_700_000_000_000) -> None:
        self._seed = seed
        self._ms = float(start_ms)
        self._made = 0
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return int(self._ms)

    def monotonic_seconds(self) -> float:
        return self._ms / 1000.0

    def sleep(self, seconds: float) -> None:
        self._ms += seconds * 1000.0

    def nonce(self) -> str:
        with self._lock:
            self._made += 1
            return hashlib.sha256(f"{self._seed}-{self._made}".encode()).hexdigest()[:32]

    def uuid7(self) -> str:
        bits = int(self.nonce(), 16) & ((1 << 74) - 1)
        return str(uuid.UUID(int=uuid7_from(self.now_ms() + self._made, bits)))

    def jitter(self) -> float:
        return 0.5
