"""Finding what nobody needs and nobody can need any more. The only operation that lists a store.

An attempt is staged for one number, so it is an orphan as soon as that number is taken and no living
manifest names it: its manifest can never be created. That needs no clock; the grace period comes on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.keys import (
    CHECKPOINTS_PREFIX,
    MANIFESTS_PREFIX,
    parse_attempt_key,
    parse_manifest_key,
    parse_seal_key,
    parse_status_key,
)
from pyspark_checkpoint.history.control import find_control_or_new
from pyspark_checkpoint.history.living import Living, MissingLiving, floor_is_ours, settle_living
from pyspark_checkpoint.history.settle import paths_below
from pyspark_checkpoint.store.base import ObjectInfo, ObjectStore
from pyspark_checkpoint.store.probe import PROBE_PREFIX

GRACE_MS = 24 * 3600 * 1000
_DELETE_BATCH = 1000


@dataclass(frozen=True, slots=True)
class OrphanPlan:
    """What may be deleted, and how much of what could be is still within the grace period."""

    keys: tuple[str, ...] = ()
    size_bytes: int = 0
    young_count: int = 0
    stopped: str | None = None
    """Why nothing may be deleted now, if so."""


def scan_orphans(store: ObjectStore, clock: Clock, *, grace_ms: int = GRACE_MS) -> OrphanPlan:
    """Look for orphans and plan their deletion; deletes nothing.

    The order matters: first the control record, then the listing, then the head and what lives, then
    the control record again. So whatever was listed with a number up to the head had been taken or
    lost by the time the living were read.
    """
    state = find_control_or_new(store)
    if state is None:
        return OrphanPlan()
    listed = [
        info
        for prefix in (CHECKPOINTS_PREFIX, MANIFESTS_PREFIX, PROBE_PREFIX)
        for info in store.list(prefix)
    ]
    try:
        living = settle_living(store, state.control)
    except MissingLiving:
        if state.control.floor > 1 or any(parse_manifest_key(info.key) for info in listed):
            raise
        return OrphanPlan()
    if living is not None:
        living = _with_settled(store, living)
    if living is None:
        return OrphanPlan(stopped="somebody else is pruning; try again later")
    return plan_orphans(listed, living, clock.now_ms() - grace_ms)


def _with_settled(store: ObjectStore, living: Living) -> Living | None:
    """The living with all that their lists name; None if somebody else deletes meanwhile."""
    try:
        below = paths_below(store, living.lists)
    except FormatError:
        if floor_is_ours(store, living.control):
            raise
        return None
    return replace(living, paths=living.paths | below)


def plan_orphans(listed: Iterable[ObjectInfo], living: Living, older_than_ms: int) -> OrphanPlan:
    """Decide which of the listed objects are orphans old enough to go. Pure."""
    keys: list[str] = []
    size_bytes = young = 0
    for info in _dead(listed, living):
        if info.modified_ms > older_than_ms:
            young += 1
        else:
            keys.append(info.key)
            size_bytes += info.size_bytes
    return OrphanPlan(tuple(keys), size_bytes, young)


def _dead(listed: Iterable[ObjectInfo], living: Living) -> Iterator[ObjectInfo]:
    for info in listed:
        if (
            is_orphan_artifact(info.key, living)
            or is_dead_record(info.key, living)
            or info.key.startswith(PROBE_PREFIX)
        ):
            yield info


def is_orphan_artifact(key: str, living: Living) -> bool:
    """Rule 8: staged for a number at or below the head, and named by no living manifest."""
    parsed = parse_attempt_key(key)
    if parsed is None:
        return False
    return parsed[0].number <= living.head_number and key not in living.paths


def is_dead_record(key: str, living: Living) -> bool:
    """A manifest or side record below the floor that no pin keeps: never valid again."""
    number = parse_manifest_key(key) or parse_seal_key(key)
    if number is None:
        status = parse_status_key(key)
        number = None if status is None else status.number
    return number is not None and number < living.control.floor and number not in living.manifests


def execute_orphans(store: ObjectStore, plan: OrphanPlan) -> int:
    """Delete what the plan names and return how many objects that were."""
    for start in range(0, len(plan.keys), _DELETE_BATCH):
        store.delete(plan.keys[start : start + _DELETE_BATCH])
    return len(plan.keys)
