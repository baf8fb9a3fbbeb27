"""Finding the newest checkpoint without a LIST, whatever the hint says and whoever prunes meanwhile.

All numbers from the floor to the head exist. So a number h that exists, whose successor does not, is
the head, provided that the floor, *read after both*, is not above h: the floor never falls, hence it
was not above h when h + 1 was found absent, and no pruner had made that gap.

The hint moves only after the manifest that it names was created. So a hint above the head, to a manifest
that is absent, proves that the newest checkpoints are lost: somebody else deleted them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pyspark_checkpoint.errors import FormatError, Unavailable
from pyspark_checkpoint.format.envelope import Mac
from pyspark_checkpoint.format.keys import LATEST_KEY, MAX_NUMBER, manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.records import Control, decode_latest
from pyspark_checkpoint.history.control import (
    ControlState,
    find_control_or_new,
    has_manifests,
    read_control,
)
from pyspark_checkpoint.history.manifest_reader import exists, find_record, load_manifest_bytes
from pyspark_checkpoint.store.base import ObjectStore

MAX_ROUNDS = 32


@dataclass(frozen=True, slots=True)
class Head:
    """The newest checkpoint: its manifest, the digest of its bytes, and ``_control`` as read after it."""

    manifest: CheckpointManifest
    sha256: str
    control: Control
    data: bytes = field(repr=False)
    lost: int | None = None
    """The newest checkpoint that was committed after it and is gone; None if nothing shows that."""

    @property
    def number(self) -> int:
        """The head's number."""
        return self.manifest.checkpoint_id


@dataclass(frozen=True, slots=True)
class HeadLocation:
    """Where the head is and the bytes found there, which may be damaged."""

    number: int
    control: Control
    data: bytes = field(repr=False)
    lost: int | None = None
    """As in ``Head``."""


@dataclass(frozen=True, slots=True)
class _Rung:
    """A number that exists, with its bytes if they were read."""

    number: int
    data: bytes | None = field(default=None, repr=False)


def find_head(
    store: ObjectStore, *, cached: Head | None = None, mac: Mac | None = None, store_id: str | None = None
) -> Head | None:
    """The newest checkpoint, None for a store in which nothing was ever committed.

    Costs 4 requests when the hint is right, 2 when ``cached`` is still the head. Anything that is not
    as it should be (unreachable, damaged, a gap, a lost control record) is an error.
    """
    found = locate_head(store, cached=cached, store_id=store_id)
    if found is None:
        return None
    if cached is not None and found.data is cached.data:
        return Head(cached.manifest, cached.sha256, found.control, cached.data, found.lost)
    head = head_from_bytes(found.data, found.number, found.control, mac=mac)
    return replace(head, lost=found.lost)


def head_from_bytes(data: bytes, number: int, control: Control, *, mac: Mac | None = None) -> Head:
    """Make a head of the bytes of its manifest, which another process may have found; no request."""
    loaded = load_manifest_bytes(data, number, mac=mac)
    if loaded.manifest.kind is ManifestKind.TOMBSTONE or number in control.deleted:
        raise FormatError(
            f"{manifest_key(number)} is the newest manifest, but that checkpoint was deleted",
            hint="newer manifests are missing; run ckpt verify, or go back with ckpt rollback",
        )
    return Head(loaded.manifest, loaded.sha256, control, data)


def locate_head(
    store: ObjectStore, *, cached: Head | None = None, store_id: str | None = None
) -> HeadLocation | None:
    """Find the head without looking into it, so that a damaged one can be told from a missing one."""
    hint = None if cached is not None else _find_hint(store)
    start = _Rung(cached.number, cached.data) if cached is not None else hint.rung if hint else None
    promised = cached is not None or hint is not None
    missing = cached.lost if cached is not None else hint.missing if hint else None
    gap: int | None = None
    deleted: int | None = None
    for _ in range(MAX_ROUNDS):
        top = _climb(store, start) if start is not None else None
        state = find_control_or_new(store) if store_id is None else read_control(store, store_id=store_id)
        if state is None:
            return None
        if top is not None and top.data is not None and floor_allows(state.control, top.number):
            if top.number not in state.control.deleted or top.number == deleted:
                lost = missing if missing is not None and missing > top.number else None
                return HeadLocation(top.number, state.control, top.data, lost)
            # Only what is not the newest can be deleted, so there is a newer one by now: look again.
            start, deleted = top, top.number
            continue
        start = _find_floor(store, state)
        if start is None:
            # Absent under a floor that may have risen meanwhile proves nothing: look at both again.
            floor = state.control.floor
            if gap == floor:
                if floor == 1 and not promised and not has_manifests(store):
                    return None
                if floor_is_gone(store, floor):
                    raise _missing_floor(floor)
            gap = floor
    raise Unavailable(
        f"gave up reading {store.url}: it was pruned {MAX_ROUNDS} times meanwhile", hint="repeat it"
    )


def floor_is_gone(store: ObjectStore, floor: int) -> bool:
    """Whether the oldest manifest is missing, and not just created, or pruned, since we looked."""
    return find_record(store, manifest_key(floor)) is None and read_control(store).control.floor == floor


def floor_allows(control: Control, number: int) -> bool:
    """Rule 2: a number below the floor is no head, whatever lies there."""
    return control.floor <= number


@dataclass(frozen=True, slots=True)
class _Hint:
    """What the pointer says. That there is one proves that something was committed."""

    rung: _Rung | None
    missing: int | None = None
    """The number that it names, if that manifest is absent: pruned, or lost."""


def _find_hint(store: ObjectStore) -> _Hint | None:
    data = find_record(store, LATEST_KEY)
    if data is None:
        return None
    try:
        number = decode_latest(data)
        if number > MAX_NUMBER:
            return _Hint(None)
    except FormatError:
        return _Hint(None)
    found = find_record(store, manifest_key(number))
    return _Hint(None, number) if found is None else _Hint(_Rung(number, found))


def lost_problem(lost: int, head_number: int) -> str:
    """What is wrong with a checkpoint that is known to have been committed, and is gone."""
    others = "" if lost == head_number + 1 else f", and so are those from {head_number + 1} on"
    return f"is missing, although _latest shows that it was committed{others}"


def _find_floor(store: ObjectStore, state: ControlState) -> _Rung | None:
    number = state.control.floor
    data = find_record(store, manifest_key(number))
    return None if data is None else _Rung(number, data)


def _missing_floor(number: int) -> FormatError:
    return FormatError(
        f"{manifest_key(number)}, the oldest checkpoint, is missing",
        hint="objects of the store were deleted by hand; run ckpt verify",
    )


def _climb(store: ObjectStore, start: _Rung) -> _Rung | None:
    """From a number that exists to one whose successor does not: gallop, then bisect."""
    low, step = start.number, 1
    while exists(store, manifest_key(low + step)):
        low += step
        step *= 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if exists(store, manifest_key(middle)):
            low = middle
        else:
            high = middle
    if low == start.number:
        return start
    data = find_record(store, manifest_key(low))
    return None if data is None else _Rung(low, data)
