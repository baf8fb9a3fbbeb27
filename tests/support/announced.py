"""The markers of the test that runs, also for the processes that it starts."""

from __future__ import annotations

import os

VARIABLE = "CKPT_TEST_MARKERS"


class MissingMarkerError(RuntimeError):
    """A test started a program that its markers do not announce."""


def check_announced(marker: str) -> None:
    """Refuse to start something for a test, of this process or a parent, that lacks its marker."""
    announced = os.environ.get(VARIABLE)
    if announced is not None and marker not in announced.split():
        raise MissingMarkerError(f"@pytest.mark.{marker} is missing")
