"""Finding what nobody needs and nobody can need any more. The only operation that lists a store.

An attempt is staged for one number, so it is an orphan as soon as that number is taken and no live manifest
names it: its manifest can never be created. Neither that nor what follows needs a clock; the grace period
comes on top.

Before its number is taken, what was staged is an orphan only if the run that staged it has said so. A run
that begins a capture again has staged objects that no manifest can come to name, and their number may stay
free for as long as captures fail. Only the run knows that: it has sent no manifest that names them, and
sends none. It says so in a record beside them. Nobody else may say it: an upload that looks abandoned may
belong to a writer that sleeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import decode_record, encode_record
from pyspark_checkpoint.format.keys import (
    CHECKPOINTS_PREFIX,
    MANIFESTS_PREFIX,
    CheckpointId,
    CheckpointPaths,
    check_artifact_path,
    parse_attempt_key,
    parse_given_up_key,
    parse_manifest_key,
    parse_seal_key,
    parse_status_key,
)
from pyspark_checkpoint.history.control import find_control_or_new, has_changed_since
from pyspark_checkpoint.history.live_set import LiveSet, MissingFromLiveSet, settle_live_set
from pyspark_checkpoint.history.manifest_reader import find_record
from pyspark_checkpoint.history.settle import paths_below
from pyspark_checkpoint.history.staging import put_artifact
from pyspark_checkpoint.store.base import ObjectInfo, ObjectStore
from pyspark_checkpoint.store.probe import PROBE_PREFIX

GRACE_MS = 24 * 3600 * 1000
_DELETE_BATCH = 1000
_NOTHING: Mapping[str, frozenset[str]] = {}


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

    The order matters: first the control record, then the listing, then the head and the live set, then
    the control record again. So whatever was listed with a number up to the head had been taken or
    lost by the time the live set was read.
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
        live = settle_live_set(store, state.control)
    except MissingFromLiveSet:
        if state.control.floor > 1 or any(parse_manifest_key(info.key) for info in listed):
            raise
        live = LiveSet(state.control, {}, frozenset())  # nothing was committed yet
    if live is not None:
        live = _with_settled(store, live)
    if live is None:
        return OrphanPlan(stopped="another prune is running; try again later")
    given_up = read_given_up(store, (info.key for info in listed), above=live.head_number)
    return plan_orphans(listed, live, clock.now_ms() - grace_ms, given_up)


def _with_settled(store: ObjectStore, live: LiveSet) -> LiveSet | None:
    """The live set with all that its lists name; None if another prune or deletion runs."""
    try:
        below = paths_below(store, live.lists)
    except FormatError:
        # A deletion changes the record as well, not only a prune, which raises the floor.
        if not has_changed_since(store, live.control):
            raise
        return None
    return replace(live, paths=live.paths | below)


def plan_orphans(
    listed: Sequence[ObjectInfo],
    live: LiveSet,
    older_than_ms: int,
    given_up: Mapping[str, frozenset[str]] = _NOTHING,
) -> OrphanPlan:
    """Decide which of the listed objects are orphans old enough to go. Pure.

    ``given_up`` has, by record, what was staged for a number above the head and is given up. A record goes
    after everything that it names.
    """
    plan = _plan(_dead(listed, live, frozenset().union(*given_up.values())), older_than_ms)
    left = {info.key for info in listed} - set(plan.keys)
    records = _plan((info for info in listed if info.key in given_up), older_than_ms)
    done = tuple(key for key in records.keys if not given_up[key] & left)
    sizes = {info.key: info.size_bytes for info in listed}
    return OrphanPlan(
        plan.keys + done,
        plan.size_bytes + sum(sizes[key] for key in done),
        plan.young_count + len(given_up) - len(done),
    )


def _plan(dead: Iterable[ObjectInfo], older_than_ms: int) -> OrphanPlan:
    keys: list[str] = []
    size_bytes = young = 0
    for info in dead:
        if info.modified_ms > older_than_ms:
            young += 1
        else:
            keys.append(info.key)
            size_bytes += info.size_bytes
    return OrphanPlan(tuple(keys), size_bytes, young)


def _dead(listed: Iterable[ObjectInfo], live: LiveSet, given_up: Set[str]) -> Iterator[ObjectInfo]:
    for info in listed:
        if (
            is_orphan_artifact(info.key, live)
            or is_given_up(info.key, live, given_up)
            or is_dead_record(info.key, live)
            or info.key.startswith(PROBE_PREFIX)
        ):
            yield info


def is_orphan_artifact(key: str, live: LiveSet) -> bool:
    """Rule 8: staged for a number at or below the head, and named by no live manifest."""
    parsed = parse_attempt_key(key)
    if parsed is None:
        return False
    return parsed[0].number <= live.head_number and key not in live.paths


def is_given_up(key: str, live: LiveSet, given_up: Set[str]) -> bool:
    """Rule 8: staged for a number that is free, and given up by the run that staged it."""
    return key in given_up and key not in live.paths


def is_dead_record(key: str, live: LiveSet) -> bool:
    """A manifest or side record below the floor that no pin keeps: never valid again."""
    number = parse_manifest_key(key) or parse_seal_key(key)
    if number is None:
        status = parse_status_key(key)
        number = None if status is None else status.number
    return number is not None and number < live.control.floor and number not in live.manifests


def execute_orphans(store: ObjectStore, plan: OrphanPlan) -> int:
    """Delete what the plan names and return how many objects that were."""
    for start in range(0, len(plan.keys), _DELETE_BATCH):
        store.delete(plan.keys[start : start + _DELETE_BATCH])
    return len(plan.keys)


# --- what a run has given up -----------------------------------------------------------------------


MAX_PATHS = 20_000
"""In one record; more of them go into several."""


def give_up(store: ObjectStore, number: int, paths: Sequence[str], clock: Clock) -> None:
    """Say that no manifest names, or will ever name, these objects, which the caller staged for ``number``.

    Never for objects of a manifest that was sent: an answer that was lost proves nothing.
    """
    for start in range(0, len(paths), MAX_PATHS):
        key = CheckpointPaths.given_up(CheckpointId(number, clock.uuid7()))
        put_artifact(store, key, _encode(number, paths[start : start + MAX_PATHS]), clock)


def read_given_up(store: ObjectStore, keys: Iterable[str], *, above: int) -> Mapping[str, frozenset[str]]:
    """What the records among ``keys`` name, by record, if it was staged for a number above ``above``.

    A record that is damaged names nothing: what it named stays until its number is taken.
    """
    return dict(_read_each(store, keys, above))


def _read_each(store: ObjectStore, keys: Iterable[str], above: int) -> Iterator[tuple[str, frozenset[str]]]:
    for key in keys:
        number = parse_given_up_key(key)
        if number is None or number <= above:
            continue
        data = find_record(store, key)
        if data is not None:
            try:
                yield key, _decode(data, key, number)
            except FormatError:
                continue


def _encode(number: int, paths: Sequence[str]) -> bytes:
    return encode_record({"checkpoint_id": number, "paths": list(paths)})


def _decode(data: bytes, key: str, number: int) -> frozenset[str]:
    fields = decode_record(data, key)
    paths = fields.get("paths")
    if fields.get("checkpoint_id") != number or not isinstance(paths, list):
        raise FormatError(f"{key} lacks a field, or has one of another type")
    found = frozenset(check_artifact_path(path) for path in paths if isinstance(path, str))
    if any(parsed[0].number != number for path in found if (parsed := parse_attempt_key(path)) is not None):
        raise FormatError(f"{key} names objects of another number")
    return found
