"""Going back on purpose: the content of an earlier checkpoint becomes the newest one.

The target is pinned first, so that no pruner takes it while the new manifest is on its way. Every run
that was writing is fenced at its next commit, because the rollback is a run of its own.
"""

from __future__ import annotations

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import CheckpointError, Denied, Invalid, OutcomeUnknown, RefusedError
from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.commit import Run
from pyspark_checkpoint.history.pins import rollback_pin_name
from pyspark_checkpoint.history.records_io import read_manifest
from pyspark_checkpoint.history.savepoint import drop_pin, pin_checkpoint
from pyspark_checkpoint.store.base import ObjectStore


def rollback(
    store: ObjectStore,
    target: int,
    *,
    run_id: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    instance_id: str = "",
    cipher: Cipher | None = None,
) -> CheckpointManifest:
    """Commit the content of checkpoint ``target`` again, as the newest one, and return that manifest.

    Refused if the target is deleted, or below the floor and not pinned. ``FencedError`` if somebody
    commits meanwhile: stop the query first.
    """
    run = Run(
        store, run_id or f"rollback-{clock.uuid7()}", clock=clock, instance_id=instance_id, cipher=cipher
    )
    head = run.refresh()
    if head is None:
        raise RefusedError(f"{store.url} has no checkpoint to go back to")
    attempt = run.attempt()
    name = rollback_pin_name(attempt.number, attempt.uuid)
    pin_target(store, name, target, clock)
    try:
        loaded = read_manifest(store, target, mac=run.mac)
        made = run.publish_rollback(loaded.manifest, attempt, loaded.manifest.paths())
    except (OutcomeUnknown, Denied, Invalid):
        # The manifest may still land. The pin names its number, and is dropped once that is taken.
        raise
    except CheckpointError:
        drop_pin(store, name, clock)
        raise
    drop_pin(store, name, clock)
    return made


def pin_target(store: ObjectStore, name: str, target: int, clock: Clock) -> None:
    """Rule 8: a rollback pins its target before it reads it."""
    pin_checkpoint(store, name, target, clock)
