"""What the exit status says. Stable: programs depend on it."""

from __future__ import annotations

from pyspark_checkpoint.errors import CheckpointError, FormatError, SettingsError, StoreError

DONE = 0
FOUND = 1
USAGE = 2
REFUSED = 3
STORE = 4
DAMAGED = 5
INTERRUPTED = 130
PIPE_CLOSED = 141

MEANINGS = {
    DONE: "done; nothing is wrong",
    FOUND: "done, and something is wrong: findings of verify, failures of preflight, an unsafe store, "
    "one of several queries that failed",
    USAGE: "wrong usage or settings: an option, a URL, a key file, a missing package",
    REFUSED: "refused, and nothing changed: it does not exist, or would lose, duplicate or mix something",
    STORE: "the store did not do what was asked: no answer, no permission, no bucket",
    DAMAGED: "stored bytes are not what was written",
    INTERRUPTED: "interrupted by Ctrl-C; what was begun is finished by repeating the command",
}
"""Every status that a command ends with, for ``ckpt --help`` and the documentation."""


def status_of(error: CheckpointError) -> int:
    """The exit status for an error."""
    if isinstance(error, SettingsError):
        return USAGE
    if isinstance(error, StoreError):
        return STORE
    if isinstance(error, FormatError):
        return DAMAGED
    return REFUSED
