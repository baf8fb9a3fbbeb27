"""What the three clouds share: one request and its failures, clients of a process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark_checkpoint.errors import (
    AlreadyExists,
    ChecksumRefused,
    Conflict,
    Denied,
    Invalid,
    NotFound,
    OutcomeUnknown,
    StoreError,
    TooLarge,
    Unavailable,
)

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


_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_. -]{0,63}")


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked of the store. Decides between errors that depend on the question."""

    where: str
    """The bucket or container, as a URL without credentials."""
    verb: str
    key: str | None = None
    writes: bool = False
    """Whether the store may have changed when no answer arrives."""
    if_absent: bool = False
    if_match: bool = False

    def _says(self, what: str) -> str:
        target = self.where if self.key is None else f"{self.where} {self.key!r}"
        return f"{self.verb} {target}: {what}"

    def unanswered(self, detail: str) -> StoreError:
        """No answer arrived, or one that proves nothing."""
        if self.writes:
            return OutcomeUnknown(self._says(f"{detail}; the write may have landed"), key=self.key)
        return self.unavailable(detail)

    def unavailable(self, detail: str, retry_after_seconds: float | None = None) -> StoreError:
        """The store did nothing, and may do it later."""
        return Unavailable(self._says(detail), key=self.key, retry_after_seconds=retry_after_seconds)

    def lost_race(self) -> StoreError:
        """The condition of the call does not hold."""
        if self.if_absent:
            return AlreadyExists(self._says("the key exists already"), key=self.key)
        return Conflict(self._says("the object was replaced or removed meanwhile"), key=self.key)

    def absent(self) -> StoreError:
        """The store says that there is no such object."""
        return NotFound(self._says("no such object"), key=self.key)

    def denied(self, detail: str, hint: str) -> StoreError:
        """Credentials are missing, wrong, or not enough."""
        return Denied(self._says(detail), key=self.key, hint=hint)

    def invalid(self, detail: str, hint: str | None = None) -> StoreError:
        """The request cannot succeed as it is."""
        return Invalid(self._says(detail), key=self.key, hint=hint)

    def too_large(self, size_bytes: int, max_bytes: int) -> StoreError:
        """The object is larger than the caller takes."""
        detail = f"the object has {size_bytes} bytes, more than the {max_bytes} that it may have"
        return TooLarge(self._says(detail), key=self.key)

    def untrusted(self) -> StoreError:
        """The server's certificate was refused."""
        return self.invalid(
            "the server's certificate is not trusted", "check the endpoint, and REQUESTS_CA_BUNDLE"
        )

    def damaged(self, detail: str) -> StoreError:
        """What arrived is not what was sent."""
        return ChecksumRefused(
            self._says(detail), key=self.key, hint="the bytes were damaged on the way; try again"
        )

    def from_status(self, status: int, detail: str, retry_after_seconds: float | None = None) -> StoreError:
        """The meaning that an HTTP status has on every service, for those that mean nothing special."""
        if status in (429, 503):
            return self.unavailable(detail, retry_after_seconds)
        if status in (408, 425, 499) or status >= 500:
            return self.unanswered(detail)
        if status == 412:
            return self.lost_race()
        return self.invalid(detail)


def error_code(text: object) -> str:
    """Return a service's error code if it looks like one, else nothing: never free text."""
    return text if isinstance(text, str) and _CODE.fullmatch(text) else ""


def describe_status(status: int, code: str) -> str:
    """Name an answer by its status and, if there is one, its error code."""
    return f"HTTP {status} {code}".rstrip()


def parse_retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header. A date, or nonsense, counts as none."""
    try:
        seconds = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return seconds if 0.0 <= seconds < 86_400.0 else None
