"""The one way in which tests wait for something that another thread or process does."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_checkpoint.clock import SYSTEM_CLOCK

LIMIT_SECONDS = 150.0


def wait_until(
    holds: Callable[[], bool],
    what: str = "the condition",
    timeout_seconds: float = LIMIT_SECONDS,
    *,
    pause_seconds: float = 0.02,
) -> None:
    """Wait until ``holds``; after ``timeout_seconds`` the test fails, and says ``what`` did not happen."""
    deadline = SYSTEM_CLOCK.monotonic_seconds() + timeout_seconds
    while not holds():
        assert SYSTEM_CLOCK.monotonic_seconds() < deadline, f"{what}: not in {timeout_seconds:.0f} s"
        SYSTEM_CLOCK.sleep(pause_seconds)
