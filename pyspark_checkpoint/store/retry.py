"""A store that repeats what failed in passing, and never guesses what became of a conditional put.

* Every conditional put carries a nonce. A put whose answer was lost is looked up: our nonce proves
  that it landed. Without that proof the put is repeated with the same nonce, or, where repeating
  cannot tell either, the answer is ``OutcomeUnknown``. Equal bytes prove nothing.
* Once one attempt of a put had an unknown outcome, a later ``AlreadyExists`` or ``Conflict`` may have
  been caused by that attempt itself, so that it is not passed on without a look.
* What the store has decided (``NotFound``, ``Denied``, ``Invalid``, a lost race) is passed on at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import (
    AlreadyExists,
    ChecksumRefused,
    Conflict,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from pyspark_checkpoint.store.base import (
    Body,
    ObjectInfo,
    ObjectStore,
    Version,
    WrappedStore,
    check_conditions,
)
from pyspark_checkpoint.store.body import body_position, rewind_body
from pyspark_checkpoint.store.settings import RetrySettings

T = TypeVar("T")
_DAMAGED_ATTEMPTS = 3
_PASSING_OF_PLAIN_WRITES = (Unavailable, OutcomeUnknown)


class RetryingStore(WrappedStore):
    """Repeats failed calls of ``store`` within the time limit; see the module for what holds."""

    def __init__(
        self, store: ObjectStore, settings: RetrySettings | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(store)
        self._settings = settings or RetrySettings()
        self._clock = clock

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,
    ) -> Version:
        check_conditions(if_absent, if_match)
        position = body_position(data)
        conditional = if_absent or if_match is not None
        mark = nonce or (self._clock.nonce() if conditional else None)

        def attempt() -> Version:
            rewind_body(data, position)
            return self.inner.put(key, data, if_absent=if_absent, if_match=if_match, nonce=mark)

        if mark is None or not conditional:
            return self._repeat(attempt, _PASSING_OF_PLAIN_WRITES)
        return self._put_once(key, attempt, if_match, mark)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        last = start_after
        pages: Iterator[ObjectInfo] | None = None

        def advance() -> ObjectInfo | None:
            nonlocal pages
            if pages is None:
                pages = self.inner.list(prefix, start_after=last)
            try:
                return next(pages, None)
            except StoreError:
                pages = None
                raise

        while (found := self._call("list", prefix, advance)) is not None:
            last = found.key
            yield found

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        # A copy carries no nonce of ours: whose copy a lost answer belongs to cannot be proven.
        passing = (Unavailable,) if if_absent else _PASSING_OF_PLAIN_WRITES
        return self._repeat(lambda: self.inner.copy(source_key, target_key, if_absent=if_absent), passing)

    def _call(self, verb: str, key: str, effect: Callable[[], T]) -> T:  # noqa: ARG002
        return self._repeat(effect, _PASSING_OF_PLAIN_WRITES if verb == "delete" else (Unavailable,))

    def _items(self, verb: str, key: str, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        def begun() -> tuple[T | None, Iterator[T]]:
            items = begin()
            return next(items, None), items

        first, rest = self._call(verb, key, begun)
        if first is not None:
            yield first
            yield from rest

    def _repeat(self, call: Callable[[], T], passing: tuple[type[StoreError], ...]) -> T:
        """Call until it works, fails for good, or the time is up. One unknown outcome stays unknown."""
        backoff = _Backoff(self._settings, self._clock)
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                return call()
            except ChecksumRefused as error:
                backoff.damaged(error, unknown)
            except passing as error:
                if isinstance(error, OutcomeUnknown):
                    unknown = error
                backoff.wait(error, unknown)
            except StoreError as error:
                if unknown is None:
                    raise
                raise _unknown(unknown, f"repeating it failed: {error.message}") from error

    def _put_once(
        self, key: str, attempt: Callable[[], Version], expected: Version | None, nonce: str
    ) -> Version:
        """Repeat one conditional put until it is certain what became of it, or the time is up."""
        backoff = _Backoff(self._settings, self._clock)
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                return attempt()
            except ChecksumRefused as error:
                backoff.damaged(error, unknown)
                continue
            except Unavailable as error:
                failure: StoreError = error
            except OutcomeUnknown as error:
                failure = unknown = error
            except (AlreadyExists, Conflict) as error:
                if unknown is None:
                    raise
                failure = error
            except StoreError as error:
                if unknown is None:
                    raise
                raise _unknown(unknown, f"repeating it failed: {error.message}") from error
            if unknown is not None:
                landed = self._find_ours(key, expected, nonce, unknown)
                if landed is not None:
                    return landed
            backoff.wait(failure, unknown)

    def _find_ours(
        self, key: str, expected: Version | None, nonce: str, unknown: OutcomeUnknown
    ) -> Version | None:
        """Return the version of our put if it landed, None if it should be repeated, else raise."""
        try:
            found = self.inner.head(key)
        except NotFound:
            if expected is None:
                return None
            raise _unknown(unknown, "the object is gone since") from unknown
        except (Unavailable, ChecksumRefused):
            return None
        except StoreError as error:
            raise _unknown(unknown, f"looking it up failed: {error.message}") from unknown
        if found.nonce == nonce:
            return found.version
        if expected is not None and found.version == expected:
            return None
        if expected is not None:
            # Ours may have landed and have been replaced since: that is no lost race.
            raise _unknown(unknown, "the object has changed since") from unknown
        if found.nonce is None:
            raise _unknown(unknown, "the store does not say whose the object is") from unknown
        raise AlreadyExists(f"key {key!r} was created by another put", key=key) from unknown


class _Backoff:
    """The waits of one call: each longer than the one before, none beyond the limit."""

    def __init__(self, settings: RetrySettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._deadline = clock.monotonic_seconds() + settings.limit_seconds
        self._delay = settings.first_delay_seconds
        self._damaged = 0

    def wait(self, error: StoreError, unknown: OutcomeUnknown | None) -> None:
        """Wait, or raise if the time is up: what is unknown weighs more than the last failure."""
        seconds = self._delay * (0.5 + self._clock.jitter() / 2)
        self._delay = min(self._delay * 2, self._settings.max_delay_seconds)
        if isinstance(error, Unavailable):
            seconds = max(seconds, error.retry_after_seconds or 0.0)
        if self._clock.monotonic_seconds() + seconds > self._deadline:
            raise unknown or error
        self._clock.sleep(seconds)

    def damaged(self, error: ChecksumRefused, unknown: OutcomeUnknown | None) -> None:
        """Wait after bytes were damaged on the way; always damaged means that waiting is no cure."""
        self._damaged += 1
        if self._damaged >= _DAMAGED_ATTEMPTS:
            raise unknown or error
        self.wait(error, unknown)


def _unknown(error: OutcomeUnknown, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"{error.message}; {why}", key=error.key, hint=error.own_hint)
