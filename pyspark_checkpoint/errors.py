"""Every error of this package, grouped by what the one who catches it does next.

Each error carries a ``hint``: the sentence that says what to do. Text of foreign exceptions is
never passed on raw, because SDKs put headers and credentials into theirs; see ``store/`` for the
one place per backend that translates.

| base                | the handler                                                                |
|---------------------|----------------------------------------------------------------------------|
| ``StoreError``      | looks at the subclass: absent, lost race, try later, unknown, not allowed   |
| ``SettingsError``   | fixes what was typed: URL, option, extra, key file                          |
| ``FencedError``     | stops this run: another one has taken over                                 |
| ``StaleAttempt``    | plans again: the number is taken, and nobody has taken this run over       |
| ``StepAside``       | leaves it to the other: this run's checkpoints are made by somebody else    |
| ``RefusedError``    | reads the hint: going on would lose or double something                     |
| ``FormatError``     | pages someone: stored bytes are not what was written                        |
"""

from __future__ import annotations

from typing import Any


class CheckpointError(Exception):
    """Base of all errors that this package raises."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Whole after a journey from another process, whatever a subclass asks for when it is made."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[CheckpointError], args: tuple[Any, ...], fields: dict[str, Any]) -> CheckpointError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


# --- the store -----------------------------------------------------------------------------------


class StoreError(CheckpointError):
    """An object store did not do what was asked. ``key`` is the key concerned, if there is one."""

    def __init__(self, message: str, *, key: str | None = None, hint: str | None = None) -> None:
        self.key = key
        super().__init__(message, hint=hint)


class NotFound(StoreError):
    """The key does not exist. Proven by the store, never guessed from another failure."""


class AlreadyExists(StoreError):
    """A create found the key taken by somebody else. Our write is not in the store."""


class Conflict(StoreError):
    """A compare-and-swap found another version than the one expected. Our write is not in the store."""


class Unavailable(StoreError):
    """The store did not answer, or asked to slow down; nothing was written by this call.

    Raised by a backend for one attempt and by the retry wrapper when retrying did not help.
    ``retry_after_seconds`` is what the server asked for, if it did.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        hint: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message, key=key, hint=hint)


class OutcomeUnknown(StoreError):
    """A write may have landed, or may still land. Absence on a later read proves nothing."""


class Denied(StoreError):
    """Credentials are missing, wrong, or lack a permission. Repeating does not help."""


class Invalid(StoreError):
    """The request itself is wrong: a malformed key, a range beyond the end, a missing bucket."""


class TooLarge(Invalid):
    """The object has more bytes than the caller takes. It was not read."""


class ChecksumRefused(StoreError):
    """The bytes that arrived are not the bytes that were sent (either way). Nothing was written."""


# --- settings ------------------------------------------------------------------------------------


class SettingsError(CheckpointError):
    """What was typed cannot work: an URL, an option, a missing package, a key file."""


class MissingExtra(SettingsError):
    """An optional package is not installed; the hint is the pip line."""


class UnsafeStore(SettingsError):
    """The store ignores conditional writes, so that nothing stops two drivers."""


# --- the history ---------------------------------------------------------------------------------


class FencedError(CheckpointError):
    """Another run has taken the store over. This run must stop; only a new start takes over again.

    Says who took over, as far as that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        run_id: str | None = None,
        generation: int | None = None,
        query_name: str | None = None,
        instance_id: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.run_id = run_id
        self.generation = generation
        self.query_name = query_name
        self.instance_id = instance_id
        super().__init__(message, hint=hint)


class StaleAttempt(CheckpointError):
    """The number is taken, and this run is not fenced: plan and stage again, on the head as it is now.

    An earlier attempt of this same run has it, or another run has, and this one has never published.
    """


class StepAside(CheckpointError):
    """Another producer of this same run makes its checkpoints, such as the plugin beside a listener."""


class RefusedError(CheckpointError):
    """Going on would lose, double or mix something, so nothing was done."""


class FormatError(CheckpointError):
    """Stored bytes are not what this package writes: torn, damaged, unknown version, unsafe path."""


class UnknownVersion(FormatError):
    """A newer version of this package wrote the object."""


class IntegrityError(FormatError):
    """The digest of ``path`` is not the recorded one."""

    def __init__(self, path: str, expected: str, actual: str, *, hint: str | None = None) -> None:
        self.path = path
        self.expected = expected
        self.actual = actual
        super().__init__(f"integrity check failed for {path}: expected {expected}, got {actual}", hint=hint)


class MissingKey(SettingsError):
    """An encryption key is not in the key ring, or is not the one that was used. Names the key id."""

    def __init__(self, key_id: str, message: str, *, hint: str | None = None) -> None:
        self.key_id = key_id
        super().__init__(message, hint=hint)
