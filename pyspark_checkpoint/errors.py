"""Every error of this package, grouped by what the one who catches it does next.

::

    CheckpointError
     +-- StoreError            an object store did not do what was asked: look at the subclass
     |    +-- NotFound         the key is not there
     |    +-- AlreadyExists    a create lost the race
     |    +-- Conflict         a compare-and-swap lost the race
     |    +-- Unavailable      try again later: nothing was written
     |    +-- OutcomeUnknown   nobody knows whether it was written
     |    +-- Denied           fix the credentials
     |    +-- Invalid          the request itself is wrong
     |    |    +-- TooLarge
     |    +-- ChecksumRefused  the bytes were damaged on their way
     +-- SettingsError         fix what was typed: URL, option, key file
     |    +-- MissingExtra     install a package
     |    +-- MissingKey       find the encryption key
     |    +-- UnsafeStore      use a store with conditional writes
     +-- FencedError           stop this run: another one has taken over
     +-- StaleAttempt          plan again: the number is taken
     +-- StepAside             leave it to the other producer of this run
     +-- RefusedError          going on would lose, duplicate or mix something: read the hint
     |    +-- Diverged         location, table and history do not belong together
     |    +-- InUse            somebody uses the place, or is writing to it
     |    +-- NoCheckpoint     there is no such checkpoint, or it was removed
     |    +-- Incompatible     the query, schema or state does not fit what is stored
     |    +-- Unsupported      Spark, the sink or the file system cannot do this
     |    +-- Busy             gave up after many conflicting writes
     +-- FormatError           stored bytes are not what was written: page someone
          +-- UnknownVersion   a newer version of this package wrote it
          +-- IntegrityError   a digest does not match

Each class has a stable ``code``, and each error carries a ``hint``: the sentence that says what to do.
Where one cure fits every error of a class, it is the class's ``default_hint``. What depends on the place
is said there with ``hint=``, always so for ``SettingsError`` and ``RefusedError``. ``docs/errors.md``
lists codes, causes and cures. Text of foreign exceptions is never passed on raw, because SDKs put
headers and credentials into theirs; see ``store/`` for the one place per backend that translates.
"""

from __future__ import annotations

from typing import Any, ClassVar


class CheckpointError(Exception):
    """Base of all errors that this package raises."""

    code: ClassVar[str] = "CKPT-ERROR"
    """Stable: programs and runbooks depend on it."""
    default_hint: ClassVar[str | None] = None
    """What to do about an error of this class that was raised without a hint of its own."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """``message`` says what is wrong, ``hint`` what to do; without one the class's own is used."""
        self.message = message
        self.own_hint = hint
        super().__init__(message)

    @property
    def hint(self) -> str | None:
        """What to do: the hint that was given where it was raised, or the one of its class."""
        return self.own_hint or self.default_hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        self.own_hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuilt whole in another process, whatever arguments a subclass takes."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[CheckpointError], args: tuple[Any, ...], fields: dict[str, Any]) -> CheckpointError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


def safe_text(error: BaseException) -> str:
    """What may be logged of any error: ours in full, of others the kind, since SDKs tell credentials."""
    return str(error) if isinstance(error, CheckpointError) else type(error).__name__


# --- the store -----------------------------------------------------------------------------------


class StoreError(CheckpointError):
    """An object store did not do what was asked. ``key`` is the key concerned, if there is one."""

    code = "CKPT-STORE"
    default_hint = "check the URL and the options of the store; ckpt probe tries what it can do"

    def __init__(self, message: str, *, key: str | None = None, hint: str | None = None) -> None:
        self.key = key
        super().__init__(message, hint=hint)


class NotFound(StoreError):
    """The key does not exist. Proven by the store, never guessed from another failure."""

    code = "CKPT-STORE-NOT-FOUND"
    default_hint = "check the URL and --query; ckpt list shows what is there, ckpt verify what is missing"


class AlreadyExists(StoreError):
    """A create found the key taken by somebody else. Our write is not in the store."""

    code = "CKPT-STORE-EXISTS"
    default_hint = (
        "another writer was first, and nothing of this call is stored; see that one driver writes "
        "there, then repeat"
    )


class Conflict(StoreError):
    """A compare-and-swap found another version than the one expected. Our write is not in the store."""

    code = "CKPT-STORE-CONFLICT"
    default_hint = AlreadyExists.default_hint


class Unavailable(StoreError):
    """The store did not answer, or asked to slow down; nothing was written by this call.

    Raised by a backend for one attempt and by the retry wrapper when retrying did not help.
    ``retry_after_seconds`` is what the server asked for, if it did.
    """

    code = "CKPT-STORE-UNAVAILABLE"
    default_hint = "nothing was written by this call; check network, endpoint and load of the store"

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

    code = "CKPT-STORE-UNKNOWN"
    default_hint = "repeat it: what has landed is found, and is not written twice"


class Denied(StoreError):
    """Credentials are missing, wrong, or lack a permission. Repeating does not help."""

    code = "CKPT-STORE-DENIED"
    default_hint = "check the credentials, and that they may read, write, list and delete below this URL"


class Invalid(StoreError):
    """The request itself is wrong: a malformed key, a range beyond the end, a missing bucket."""

    code = "CKPT-STORE-INVALID"
    default_hint = "check bucket, prefix and the options of the store"


class TooLarge(Invalid):
    """The object has more bytes than the caller takes. It was not read."""

    code = "CKPT-STORE-TOO-LARGE"
    default_hint = (
        "this package does not write objects of this size there; see who else writes below this URL"
    )


class ChecksumRefused(StoreError):
    """The bytes that arrived are not the bytes that were sent (either way). Nothing was written."""

    code = "CKPT-STORE-CHECKSUM"
    default_hint = (
        "nothing was written; repeat it, and if it comes back look at network, proxies and memory of "
        "this machine"
    )


# --- settings ------------------------------------------------------------------------------------


class SettingsError(CheckpointError):
    """What was typed cannot work: an URL, an option, a missing package, a key file."""

    code = "CKPT-SETTINGS"


class MissingExtra(SettingsError):
    """An optional package is not installed; the hint is the pip line."""

    code = "CKPT-MISSING-PACKAGE"


class UnsafeStore(SettingsError):
    """The store ignores conditional writes, so that nothing stops two drivers."""

    code = "CKPT-UNSAFE-STORE"


# --- the history ---------------------------------------------------------------------------------


class FencedError(CheckpointError):
    """Another run has taken the store over. This run must stop; only a new start takes over again.

    Says who took over, as far as that is known.
    """

    code = "CKPT-FENCED"
    default_hint = "stop this query: another one writes here now; a new start of it takes over"

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

    code = "CKPT-STALE-ATTEMPT"
    default_hint = (
        "nothing was committed; the next attempt plans on the newest checkpoint. If it comes back, see "
        "that one producer writes for this query"
    )


class StepAside(CheckpointError):
    """Another producer of this same run makes its checkpoints, such as the plugin beside a listener."""

    code = "CKPT-STEP-ASIDE"
    default_hint = (
        "nothing to do: the other producer of this run makes the checkpoints. Take one of the two out "
        "of the configuration"
    )


class RefusedError(CheckpointError):
    """Going on would lose, duplicate or mix something, so nothing was done."""

    code = "CKPT-REFUSED"


class Diverged(RefusedError):
    """Checkpoint location, table and history do not belong together: one of them has gone on alone."""

    code = "CKPT-DIVERGED"


class InUse(RefusedError):
    """A query, a restore or another application uses the place, or is writing to it."""

    code = "CKPT-IN-USE"


class NoCheckpoint(RefusedError):
    """There is no such checkpoint, epoch, savepoint or query, or it was removed."""

    code = "CKPT-NO-CHECKPOINT"


class Incompatible(RefusedError):
    """The query, its schema, keys, mode or state does not fit what is stored."""

    code = "CKPT-INCOMPATIBLE"


class Unsupported(RefusedError):
    """This Spark, sink, trigger or file system cannot do what was asked."""

    code = "CKPT-UNSUPPORTED"


class Busy(RefusedError):
    """Gave up after many conflicting writes; nothing was changed by this call."""

    code = "CKPT-BUSY"


class FormatError(CheckpointError):
    """Stored bytes are not what this package writes: torn, damaged, unknown version, unsafe path."""

    code = "CKPT-FORMAT"
    default_hint = (
        "ckpt verify names everything that is damaged; bring it back from a copy of the store, or go back "
        "to a whole checkpoint with ckpt restore or ckpt rollback"
    )


class UnknownVersion(FormatError):
    """A newer version of this package wrote the object."""

    code = "CKPT-VERSION"
    default_hint = "install the version of pyspark-checkpoint that wrote it, or a newer one"


class IntegrityError(FormatError):
    """The digest of ``path`` is not the recorded one."""

    code = "CKPT-INTEGRITY"

    def __init__(self, path: str, expected: str, actual: str, *, hint: str | None = None) -> None:
        self.path = path
        self.expected = expected
        self.actual = actual
        super().__init__(f"integrity check failed for {path}: expected {expected}, got {actual}", hint=hint)


class MissingKey(SettingsError):
    """An encryption key is not in the key ring, or is not the one that was used. Names the key id."""

    code = "CKPT-MISSING-KEY"

    def __init__(self, key_id: str, message: str, *, hint: str | None = None) -> None:
        self.key_id = key_id
        super().__init__(message, hint=hint)
