"""Savepoints: checkpoints pinned by a name, in the control record, so that no pruner takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import NoCheckpoint, RefusedError
from pyspark_checkpoint.format.keys import check_name
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.records import Control, Pin
from pyspark_checkpoint.history.control import ControlState, may_pin, read_control, savepoints, swap_control
from pyspark_checkpoint.history.deletion import Removal, remove_dead
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.live_set import LiveSetChanged, settle_live_set
from pyspark_checkpoint.history.manifest_reader import LoadedManifest, find_manifest
from pyspark_checkpoint.store.base import ObjectStore

LATEST_NAME = "latest"
_LIST_HINT = "ckpt list shows what there is"


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A name and the checkpoint that it keeps."""

    name: str
    checkpoint_id: int
    sha256: str
    outputs: tuple[str, ...] = ()
    """What is kept of the outputs of its query, a line each, where it was just made."""


def add_savepoint(store: ObjectStore, name: str, clock: Clock, *, number: int | None = None) -> Savepoint:
    """Pin checkpoint ``number``, the newest by default, under ``name``. Repeating it changes nothing.

    Refused if the name pins another checkpoint, or if the checkpoint is deleted or below the floor.
    """
    check_savepoint_name(name)
    if number is None:
        head = find_head(store)
        if head is None:
            raise NoCheckpoint(
                f"{store.url} has no checkpoint to make a savepoint of", hint="check the URL"
            )
        number = head.number
    pin = pin_checkpoint(store, name, number, clock).control.pins[name]
    return Savepoint(name, pin.number, pin.sha256)


def check_savepoint_name(name: str) -> str:
    """Return ``name`` if it can be a savepoint's, else refuse it."""
    if name.startswith("~"):
        raise RefusedError(
            f"savepoint name {name!r} begins with ~, which is reserved", hint="choose another"
        )
    if name.isdigit() or name == LATEST_NAME:
        raise RefusedError(
            f"savepoint name {name!r} means a checkpoint already, wherever one is asked for",
            hint="choose a name that is no number and not 'latest'",
        )
    return check_name(name, "savepoint")


def list_savepoints(store: ObjectStore) -> list[Savepoint]:
    """All savepoints, by name."""
    control = read_control(store).control
    return [Savepoint(name, pin.number, pin.sha256) for name, pin in savepoints(control).items()]


def remove_savepoint(store: ObjectStore, name: str, clock: Clock) -> Removal:
    """Forget a savepoint. Below the floor, its checkpoint and what only it needs are deleted too.

    A crash on the way leaves garbage that ``cleanup_orphans`` removes, never a hole.
    """
    if name not in savepoints(read_control(store).control):
        raise NoCheckpoint(f"there is no savepoint {name!r}", hint=_LIST_HINT)
    return drop_pin(store, name, clock)


def pin_checkpoint(store: ObjectStore, name: str, number: int, clock: Clock) -> ControlState:
    """Rule 8: pin a number that is not below the floor, or that is pinned already, by compare-and-swap.

    The manifest is read between reading the control record and swapping it, so the digest that is
    pinned is that of a manifest which was part of the history when the swap took effect.
    """
    return swap_control(store, pin_change(store, name, number), clock)


def pin_change(store: ObjectStore, name: str, number: int) -> Callable[[Control], Control | None]:
    """The change of the control record that adds a pin, or refuses to."""

    def change(control: Control) -> Control | None:
        taken = control.pins.get(name)
        if taken is not None and taken.number == number:
            return None
        if taken is not None:
            raise RefusedError(f"{name!r} already pins checkpoint {taken.number}", hint="remove it first")
        if not may_pin(control, number):
            raise NoCheckpoint(
                f"checkpoint {number} is pruned or deleted, and cannot be pinned", hint=_LIST_HINT
            )
        loaded = _read_pinnable(store, control, number)
        return control.changed(pins={**control.pins, name: Pin(number, loaded.sha256)})

    return change


def _read_pinnable(store: ObjectStore, control: Control, number: int) -> LoadedManifest:
    loaded = find_manifest(store, number)
    if loaded is None or loaded.manifest.kind is ManifestKind.TOMBSTONE:
        raise NoCheckpoint(f"there is no checkpoint {number}", hint=_LIST_HINT)
    if number < control.floor and not control.pinned(number, loaded.sha256):
        raise NoCheckpoint(
            f"checkpoint {number} is not the one that was pinned", hint="ckpt verify shows what is there"
        )
    return loaded


def drop_pin(store: ObjectStore, name: str, clock: Clock) -> Removal:
    """Drop a pin by compare-and-swap, then delete what it alone kept. Repeating it changes nothing."""
    dropped: list[Pin] = []

    def change(control: Control) -> Control | None:
        if name not in control.pins:
            return None
        dropped[:] = [control.pins[name]]
        return control.changed(pins={n: pin for n, pin in control.pins.items() if n != name})

    control = swap_control(store, change, clock).control
    return _remove_unpinned(store, control, dropped[0].number) if dropped else Removal()


def _remove_unpinned(store: ObjectStore, control: Control, number: int) -> Removal:
    if number >= control.floor or number in control.pinned_numbers():
        return Removal()
    live = settle_live_set(store, control)
    try:
        return Removal() if live is None else remove_dead(store, live, [number])
    except LiveSetChanged:
        return Removal()
