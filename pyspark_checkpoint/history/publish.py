"""Creating a manifest, which is the commit, and finding out what became of it.

An answer that was lost proves nothing: the same bytes with the same nonce are sent again until the
store answers. A number that is taken is settled by reading it back: only our nonce means ours.
"""

from __future__ import annotations

import logging

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import (
    AlreadyExists,
    CheckpointError,
    OutcomeUnknown,
    StaleAttempt,
    StoreError,
    Unavailable,
)
from pyspark_checkpoint.format.keys import LATEST_KEY, manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.records import Control, encode_latest
from pyspark_checkpoint.history.control import read_control
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.manifest_reader import LoadedManifest, find_manifest
from pyspark_checkpoint.history.rules import fenced_by
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.retry import RetryingStore

_LOG = logging.getLogger(__name__)
SETTLE_SECONDS = 120.0
_MAX_DELAY_SECONDS = 5.0


def create_manifest(
    store: ObjectStore,
    number: int,
    data: bytes,
    *,
    nonce: str,
    run_id: str,
    clock: Clock,
    settle_seconds: float = SETTLE_SECONDS,
) -> None:
    """Create manifest ``number``; when this returns, it is, or was, in the store and is ours.

    Raises ``FencedError`` if another run has the number, ``StaleAttempt`` if an earlier attempt of
    this run has it, ``Unavailable`` if nothing was written, ``OutcomeUnknown`` if after
    ``settle_seconds`` the store has still not answered: then it may be committed, now or later.
    """
    key, deadline = manifest_key(number), clock.monotonic_seconds() + settle_seconds
    unknown: OutcomeUnknown | None = None
    delay = 0.1
    while True:
        try:
            store.put(key, data, if_absent=True, nonce=nonce)
            return
        except AlreadyExists:
            settle_taken(store, number, nonce=nonce, run_id=run_id)
            return
        except OutcomeUnknown as error:
            unknown = error
        except Unavailable:
            if unknown is None:
                raise
        if clock.monotonic_seconds() >= deadline:
            raise unknown
        clock.sleep(delay * (0.5 + clock.jitter() / 2))
        delay = min(delay * 2, _MAX_DELAY_SECONDS)


def settle_taken(store: ObjectStore, number: int, *, nonce: str, run_id: str) -> None:
    """Rule 3: the number is taken. Return if by us, else raise what follows from who has it."""
    found = find_manifest(store, number)
    if found is None:
        raise fenced_by(number, who_leads(store))
    if found.manifest.commit_nonce == nonce:
        return
    if found.manifest.run_id == run_id:
        raise StaleAttempt(
            f"an earlier attempt of this run is checkpoint {number}",
            hint="plan again on top of it; what was staged for this attempt is left alone",
        )
    refuse_loser(number, found)


def refuse_loser(number: int, found: LoadedManifest) -> None:
    """Rule 3: who loses a number to another run is fenced, whatever the generations."""
    raise fenced_by(number, found.manifest)


def check_floor(store: ObjectStore, number: int, store_id: str) -> Control:
    """Rule 5: after the create, and before anybody is told of it, the number must not be below the floor.

    A writer that slept while its number was taken, pruned and forgotten would otherwise believe that
    it had committed. This is the one GET of a commit.
    """
    control = read_control(store, store_id=store_id).control
    if control.floor > number:
        raise fenced_by(number, who_leads(store))
    return control


def who_leads(store: ObjectStore) -> CheckpointManifest | None:
    """The newest manifest, to name who took over; None if that cannot be said now."""
    try:
        head = find_head(store)
    except CheckpointError:
        # Being fenced is the answer; failing to say by whom must not hide it.
        return None
    return None if head is None else head.manifest


def move_latest(store: ObjectStore, number: int) -> bool:
    """Point the hint at ``number``; one attempt. False if that failed, which loses nothing.

    Some services allow one write a second to the same object, so it is not worth waiting for.
    """
    target = store.inner if isinstance(store, RetryingStore) else store
    try:
        target.put(LATEST_KEY, encode_latest(number))
    except StoreError as error:
        _LOG.info("the pointer to the newest checkpoint was not moved to %d: %s", number, error)
        return False
    return True
