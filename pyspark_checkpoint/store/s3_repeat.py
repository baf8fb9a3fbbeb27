"""Repeating one piece of a large object, so that a passing failure does not cost all the others.

Only for what may be repeated without a thought: a part of an upload that nobody sees yet, a range of a
version that cannot change. Everything else is repeated by ``store.retry``, which sees whole verbs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import ChecksumRefused, Unavailable

T = TypeVar("T")
ATTEMPTS = 4
_FIRST_DELAY_SECONDS = 0.2
_MAX_DELAY_SECONDS = 5.0


def repeat_piece(piece: Callable[[], T], clock: Clock) -> T:
    """Call ``piece`` until it works, at most four times; the last failure is passed on."""
    delay_seconds = _FIRST_DELAY_SECONDS
    for _ in range(ATTEMPTS - 1):
        try:
            return piece()
        except (Unavailable, ChecksumRefused) as error:
            asked = getattr(error, "retry_after_seconds", None) or 0.0
            clock.sleep(max(asked, delay_seconds * (0.5 + clock.jitter() / 2)))
            delay_seconds = min(2 * delay_seconds, _MAX_DELAY_SECONDS)
    return piece()
