"""Which checkpoints exist for readers, and finding one by number, epoch, time or name.

Rule 2: at or above the floor every manifest counts; below it only a pinned one whose digest is the
pin's. Something else may lie there: a late write of a writer that was pruned away while it slept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from pyspark_checkpoint.errors import FormatError, IntegrityError, NoCheckpoint, SettingsError
from pyspark_checkpoint.format.envelope import Mac, sha256_hex
from pyspark_checkpoint.format.fields import number_in
from pyspark_checkpoint.format.keys import MAX_NUMBER, manifest_key
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.format.summary import ManifestSummary, decode_summary
from pyspark_checkpoint.history.control import find_control_or_new, read_control, savepoints
from pyspark_checkpoint.history.head import HeadLocation, locate_head
from pyspark_checkpoint.history.manifest_reader import (
    LoadedManifest,
    find_record,
    load_manifest_bytes,
)
from pyspark_checkpoint.store.base import ObjectStore

LATEST = "latest"


def is_visible(control: Control, number: int, sha256: str) -> bool:
    """Rule 2: whether the manifest with this number and digest exists for readers.

    A pinned one that is not what was pinned is damaged, which is an error and not an absence.
    """
    if number in control.deleted:
        return False
    if number >= control.floor or control.pinned(number, sha256):
        return True
    for pin in control.pins.values():
        if pin.number == number:
            raise IntegrityError(manifest_key(number), pin.sha256, sha256)
    return False


def find_checkpoint(store: ObjectStore, number: int, *, mac: Mac | None = None) -> LoadedManifest | None:
    """Checkpoint ``number``, None if it does not exist for readers; a damaged one is an error.

    The control record is read after the manifest, so that a manifest which a pruner has given up, or
    which a stalled writer has left below the floor, is not taken for a checkpoint.
    """
    if not 1 <= number <= MAX_NUMBER:
        return None
    data = find_record(store, manifest_key(number))
    state = find_control_or_new(store)
    if data is None or state is None or not is_visible(state.control, number, sha256_hex(data)):
        return None
    loaded = load_manifest_bytes(data, number, mac=mac)
    return None if loaded.manifest.kind is ManifestKind.TOMBSTONE else loaded


def read_checkpoint(store: ObjectStore, number: int, *, mac: Mac | None = None) -> LoadedManifest:
    """Checkpoint ``number``, or ``NoCheckpoint`` if it does not exist for readers."""
    loaded = find_checkpoint(store, number, mac=mac)
    if loaded is None:
        raise no_checkpoint(store, number)
    return loaded


def no_checkpoint(store: ObjectStore, number: int) -> NoCheckpoint:
    """The error for a checkpoint that does not exist for readers."""
    return NoCheckpoint(f"{store.url} has no checkpoint {number}", hint="ckpt list shows what it has")


def visible_numbers(control: Control, head_number: int) -> list[int]:
    """The numbers that exist for readers, ascending, damaged ones included. No request, no LIST."""
    pinned = {number for number in control.pinned_numbers() if number < control.floor}
    from_floor = set(range(control.floor, head_number + 1)) - control.deleted
    return sorted(pinned | from_floor)


def iter_newest_first(store: ObjectStore, where: HeadLocation) -> Iterator[ManifestSummary]:
    """Summaries of what exists for readers, newest first. A damaged one is an error when it is reached."""
    for number in reversed(visible_numbers(where.control, where.number)):
        key = manifest_key(number)
        data = where.data if number == where.number else find_record(store, key)
        if data is None or not _is_what_control_says(where.control, number, data):
            _refuse_damage(store, where, number, data)
            continue
        summary = decode_summary(data, key)
        if summary.kind is not ManifestKind.TOMBSTONE:
            yield summary


def _is_what_control_says(control: Control, number: int, data: bytes) -> bool:
    return number >= control.floor or control.pinned(number, sha256_hex(data))


def was_removed_since(store: ObjectStore, where: HeadLocation, number: int) -> bool:
    """Whether ``number`` was pruned or deleted since ``where``; what is missing of it then is no damage."""
    control = read_control(store, store_id=where.control.store_id).control
    pruned = number < control.floor and number not in control.pinned_numbers()
    return pruned or number in control.deleted - where.control.deleted


def _refuse_damage(store: ObjectStore, where: HeadLocation, number: int, data: bytes | None) -> None:
    """Absent, or another one than was pinned: damage, unless it was pruned or deleted meanwhile."""
    if was_removed_since(store, where, number):
        return
    if data is None:
        raise FormatError(f"{manifest_key(number)} should be there and is missing", hint="run ckpt verify")
    is_visible(where.control, number, sha256_hex(data))


def find_number_by_epoch(store: ObjectStore, epoch: int) -> int | None:
    """The newest checkpoint of ``epoch``; after a rollback that is the one of the new lineage."""
    return _find_newest(store, lambda found: found.epoch == epoch)


def find_number_by_time(store: ObjectStore, timestamp_ms: int) -> int | None:
    """The newest checkpoint that was made at or before ``timestamp_ms``."""
    return _find_newest(store, lambda found: found.timestamp_ms <= timestamp_ms)


def _find_newest(store: ObjectStore, matches: Callable[[ManifestSummary], bool]) -> int | None:
    where = locate_head(store)
    if where is None:
        return None
    return next((found.number for found in iter_newest_first(store, where) if matches(found)), None)


def find_number_by_savepoint(store: ObjectStore, name: str) -> int | None:
    """The checkpoint that savepoint ``name`` keeps."""
    state = find_control_or_new(store)
    pin = None if state is None else savepoints(state.control).get(name)
    return None if pin is None else pin.number


def parse_timestamp_ms(text: str, option: str) -> int:
    """Read milliseconds, or a date and time of ISO 8601; without a zone it is UTC. ``option`` had it."""
    number = number_in(text.strip())
    if number is not None:
        return number
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise SettingsError(
            f"{option} is not a time: {text!r}", hint="write 2026-01-31T12:00:00Z, or milliseconds"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def choose_number(
    store: ObjectStore,
    at: int | str = LATEST,
    *,
    epoch: int | None = None,
    savepoint: str | None = None,
    timestamp_ms: int | None = None,
) -> int:
    """The number of the checkpoint that somebody means; ``NoCheckpoint`` if there is none.

    ``at`` is a number, a savepoint's name, ``epoch=N`` or ``latest``: the newest, damaged or not. ``epoch``
    chooses the newest checkpoint of that epoch instead, ``savepoint`` the one of that name, whatever the
    name looks like, ``timestamp_ms`` the newest that was made by then.
    Whether a number that was given exists is found out by reading it.
    """
    text = str(at).strip() if savepoint is None else savepoint
    number = number_in(text) if savepoint is None else None
    if epoch is None and savepoint is None and text.startswith("epoch="):
        epoch = number_in(text.removeprefix("epoch="))
    if epoch is not None:
        found, wanted = find_number_by_epoch(store, epoch), f"epoch {epoch}"
    elif timestamp_ms is not None:
        found, wanted = find_number_by_time(store, timestamp_ms), "checkpoint of that time or before"
    elif savepoint is None and text == LATEST:
        where = locate_head(store)
        numbers = [] if where is None else visible_numbers(where.control, where.number)
        found, wanted = max(numbers, default=None), "checkpoint"
    elif number is not None:
        return number
    else:
        found, wanted = find_number_by_savepoint(store, text), f"savepoint {text!r}"
    if found is None:
        raise NoCheckpoint(
            f"{store.url} has no {wanted}", hint="ckpt list shows what it has; older ones are pruned"
        )
    return found
