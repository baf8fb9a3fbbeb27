"""One client per process, because a client that was used before a fork must not be used after it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Holds what ``build`` makes, once per process id. Safe across threads and forks.

    There is no lock, since a lock that another thread holds during a fork stays locked in the child:
    two threads may both build, and one of the results is closed at once. What a parent process had
    is kept but never touched, not even closed, for the same reason.
    """

    def __init__(self, build: Callable[[], T], close: Callable[[T], None]) -> None:
        self._build = build
        self._close = close
        self._by_pid: dict[int, T] = {}

    def get(self) -> T:
        """Return this process's own, made now if need be."""
        pid = os.getpid()
        found = self._by_pid.get(pid)
        if found is not None:
            return found
        made = self._build()
        kept = self._by_pid.setdefault(pid, made)
        if kept is not made:
            self._close(made)
        return kept

    def close(self) -> None:
        """Close this process's own, if there is one; the next ``get`` makes another."""
        held = self._by_pid.pop(os.getpid(), None)
        if held is not None:
            self._close(held)
