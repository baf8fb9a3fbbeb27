"""Rollback: the content of an earlier checkpoint becomes the newest one.

The target is pinned first, so that no pruner takes it while the new manifest is on its way. Every run
that was writing is fenced at its next commit, because the rollback is a run of its own.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import (
    CheckpointError,
    Denied,
    FormatError,
    Invalid,
    NoCheckpoint,
    OutcomeUnknown,
    StaleAttempt,
)
from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.format.envelope import Mac, sha256_hex
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.history.control import read_control, rollback_pin_name
from pyspark_checkpoint.history.deletion import remove_lost_records, tombstone_of
from pyspark_checkpoint.history.head import Head, HeadLocation, locate_head
from pyspark_checkpoint.history.manifest_reader import LoadedManifest, find_manifest
from pyspark_checkpoint.history.publish import who_leads
from pyspark_checkpoint.history.rules import fenced_by, lost_number
from pyspark_checkpoint.history.run import CLAIM_ROUNDS, Run
from pyspark_checkpoint.history.savepoint import drop_pin, pin_checkpoint
from pyspark_checkpoint.history.seal import carry_records
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

    Refused if the target is deleted, or below the floor and not pinned. A query that still runs may
    commit meanwhile, and be faster: then its new head is rolled back. ``StaleAttempt`` if that was
    so ``CLAIM_ROUNDS`` times: stop the query first.
    """
    run = Run(
        store, run_id or f"rollback-{clock.uuid7()}", clock=clock, instance_id=instance_id, cipher=cipher
    )
    for _ in range(CLAIM_ROUNDS):
        try:
            return _roll_back(store, run, target, clock)
        except StaleAttempt:
            continue
    raise StaleAttempt(
        f"gave up rolling back to checkpoint {target} after {CLAIM_ROUNDS} commits of other runs",
        hint="stop the query, and repeat it",
    )


def _roll_back(store: ObjectStore, run: Run, target: int, clock: Clock) -> CheckpointManifest:
    head = _find_parent(run)
    if head is None:
        raise NoCheckpoint(f"{store.url} has no checkpoint to roll back to", hint="check the URL")
    attempt = run.attempt()
    name = rollback_pin_name(attempt.number, attempt.uuid)
    pin_target(store, name, target, clock)
    try:
        loaded = read_pinned_target(store, name, target, attempt.number, run.mac)
        if head.lost is not None:
            remove_lost_records(store, head.number, head.lost)
        made = run.publish_rollback(loaded.manifest, attempt, loaded.manifest.paths())
    except (OutcomeUnknown, Denied, Invalid):
        # The manifest may still land. The pin names its number, and is dropped once that is taken.
        raise
    except CheckpointError:
        drop_pin(store, name, clock)
        raise
    try:
        carry_records(store, loaded.manifest, made, clock, mac=run.mac)
    except CheckpointError:
        drop_pin(store, name, clock)  # the manifest is there: the pin protects nothing any more
        raise
    drop_pin(store, name, clock)
    return made


def pin_target(store: ObjectStore, name: str, target: int, clock: Clock) -> None:
    """Rule 8: a rollback pins its target before it reads it."""
    pin_checkpoint(store, name, target, clock)


def read_pinned_target(
    store: ObjectStore, name: str, target: int, number: int, mac: Mac | None
) -> LoadedManifest:
    """The target's manifest. A pin is dropped once its number is taken: then another run has it."""
    loaded = find_manifest(store, target, mac=mac)
    if loaded is not None:
        return loaded
    if name not in read_control(store).control.pins:
        raise lost_number(number, fenced_by(number, who_leads(store)))
    raise FormatError(f"{manifest_key(target)} is pinned, and missing")


def _find_parent(run: Run) -> Head | None:
    """The head; if it is damaged, a stand-in, because a rollback is the way out of that."""
    try:
        return run.refresh()
    except FormatError:
        where = locate_head(run.store)
        if where is None:
            return None
        head = replace(stand_in_head(run.store, where), lost=where.lost)
        run.adopt(head)
        return head


def stand_in_head(store: ObjectStore, where: HeadLocation) -> Head:
    """A head for a manifest that cannot be read: its number and digest are known, the rest is bounded.

    The generation rises by at most one from manifest to manifest, so that the newest readable one
    bounds it; times never fall.
    """
    for number in range(where.number - 1, where.control.floor - 1, -1):
        try:
            loaded = find_manifest(store, number)
        except FormatError:
            continue
        if loaded is not None:
            manifest = replace(
                tombstone_of(loaded.manifest, loaded.sha256),
                checkpoint_id=where.number,
                generation=loaded.manifest.generation + where.number - number,
                run_id="unreadable",
                query=QueryInfo(),
            )
            return Head(manifest, sha256_hex(where.data), where.control, where.data)
    manifest = CheckpointManifest(
        checkpoint_id=where.number, epoch=0, generation=where.number, run_id="unreadable"
    )
    return Head(manifest, sha256_hex(where.data), where.control, where.data)
