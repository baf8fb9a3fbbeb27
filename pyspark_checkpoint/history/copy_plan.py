"""Deciding what a copy of a history needs. Pure.

A copy keeps manifests and artifacts byte for byte, and the store id with them: the id names the
history, not the URL, and encrypted artifacts are bound to it. What holds at the target:

* It must hold a prefix of the source's history: numbers from its own floor up to its own head, without
  a gap, each equal to the source's. It never shows a checkpoint whose artifacts are not all there.
* Its history must be the source's. A target that another query wrote, or whose own run has gone on by
  itself (a failover), is refused and left as it is.
* It keeps what the source has pruned, until it is pruned itself, and what it has pruned stays away.
  One that fell so far behind that the source no longer has its next number starts over at the
  source's floor.
* Checkpoints that are chosen one by one become pins below the highest of them, which becomes the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_checkpoint.errors import Diverged, InUse, NoCheckpoint
from pyspark_checkpoint.format.keys import pad
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.records import Control, Pin
from pyspark_checkpoint.history.control import savepoints


@dataclass(frozen=True, slots=True, order=True)
class ObjectRange:
    """A range of an object and the digest that proves it."""

    path: str
    offset: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CopiedCheckpoint:
    """One checkpoint as far as copying cares."""

    number: int
    sha256: str
    kind: ManifestKind
    deleted_sha256: str | None
    run_id: str
    earlier_runs: tuple[str, ...]
    sink_names: tuple[str, ...]

    def is_same(self, other: CopiedCheckpoint) -> bool:
        """Whether both are one checkpoint; one side may have been deleted since, and say so."""
        return self.original_sha256 == other.original_sha256

    @property
    def original_sha256(self) -> str:
        """The digest that the next manifest knows it by."""
        return self.deleted_sha256 or self.sha256


@dataclass(frozen=True, slots=True)
class SourceView:
    """What was read of the source. ``checkpoints`` has at least what ``numbers_to_read`` asked for."""

    control: Control
    head: CopiedCheckpoint
    checkpoints: Mapping[int, CopiedCheckpoint]
    ranges: Mapping[str, frozenset[ObjectRange]] = field(repr=False, default_factory=dict)
    data_key_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TargetView:
    """What is at the target: nothing, a copy that was begun, or a history whose head needs ``held``."""

    control: Control | None = None
    head: CopiedCheckpoint | None = None
    held: frozenset[str] = field(repr=False, default=frozenset())


@dataclass(frozen=True, slots=True)
class CopySelection:
    """Which checkpoints are wanted: all, or these numbers and savepoints."""

    numbers: frozenset[int] = frozenset()
    savepoint_names: frozenset[str] = frozenset()

    @property
    def everything(self) -> bool:
        """Whether the whole store is wanted."""
        return not (self.numbers or self.savepoint_names)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What a copy does: control, keys, objects, what is pinned below the floor, manifests, pins, hint."""

    store_id: str
    floor: int
    rebase: bool
    """Whether the target, which fell behind the source's floor, starts over at ``floor``."""
    manifests: tuple[int, ...]
    """Numbers to publish at the head, ascending, without a gap."""
    below: tuple[int, ...]
    """Numbers below the floor to bring, each of which is in ``pins``."""
    pins: Mapping[str, Pin]
    deleted: frozenset[int]
    objects: tuple[str, ...]
    data_key_ids: tuple[str, ...]
    records_of: tuple[int, ...]
    """Numbers whose seals and sink statuses are brought up to date."""


def view_of(manifest: CheckpointManifest, sha256: str) -> CopiedCheckpoint:
    """What copying needs to know of a manifest."""
    return CopiedCheckpoint(
        manifest.checkpoint_id,
        sha256,
        manifest.kind,
        manifest.deleted_sha256,
        manifest.run_id,
        manifest.earlier_runs,
        manifest.sink_names,
    )


def wanted_numbers(control: Control, head_number: int, selection: CopySelection) -> frozenset[int]:
    """The numbers that are wanted at the target; ``RefusedError`` for one that the source does not have."""
    pins = savepoints(control)
    if selection.everything:
        pinned = {pin.number for pin in pins.values()}
        return frozenset(range(control.floor, head_number + 1)) | pinned
    chosen = set(selection.numbers)
    for name in selection.savepoint_names:
        if name not in pins:
            raise NoCheckpoint(f"the source has no savepoint {name!r}", hint="ckpt list shows them")
        chosen.add(pins[name].number)
    for number in sorted(chosen):
        is_live = control.floor <= number <= head_number or number in control.pinned_numbers()
        if not is_live or number in control.deleted:
            raise NoCheckpoint(f"the source has no checkpoint {number}", hint="ckpt list shows them")
    return frozenset(chosen)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Which numbers go where, from the control records and heads alone."""

    wanted: frozenset[int]
    manifests: tuple[int, ...]
    rebase: bool
    floor: int
    below: tuple[int, ...]


def _shape(control: Control, head_number: int, target: TargetView, selection: CopySelection) -> _Shape:
    wanted = wanted_numbers(control, head_number, selection)
    last = max(wanted)
    anew = tuple(range(control.floor, last + 1)) if selection.everything else (last,)
    rebase = False
    if target.head is None:
        manifests, floor = anew, anew[0]
        if target.control is not None and target.control.floor > floor:
            raise InUse(
                f"a copy from checkpoint {target.control.floor} on was begun at the target",
                hint="finish it, or copy to an empty URL",
            )
    else:
        there = target.head.number
        joins = control.floor <= there + 1 and last >= control.floor
        rebase = last > there and not joins
        manifests = anew if rebase else tuple(range(there + 1, last + 1))
        floor = manifests[0] if rebase else _floor_of(target)
    kept = {pin.number for pin in savepoints(control).values()} if selection.everything else wanted
    below = tuple(sorted(n for n in kept if n < floor and not _is_pinned_there(control, target, n)))
    return _Shape(wanted, manifests, rebase, floor, below)


def _floor_of(target: TargetView) -> int:
    return target.control.floor if target.control is not None else 1


def _is_pinned_there(control: Control, target: TargetView, number: int) -> bool:
    """Whether the target has this very checkpoint as a pin already, which needs no look at a manifest."""
    there = set(target.control.pins.values()) if target.control is not None else set[Pin]()
    return any(pin.number == number and pin in there for pin in control.pins.values())


def numbers_to_read(
    control: Control, head_number: int, target: TargetView, selection: CopySelection
) -> tuple[int, ...]:
    """The source's manifests that ``plan_copy`` needs: the new ones, and the one the target ends with."""
    shape = _shape(control, head_number, target, selection)
    needed = {*shape.manifests, *shape.below}
    if target.head is not None and control.floor <= target.head.number <= head_number:
        needed.add(target.head.number)
    return tuple(sorted(needed))


def plan_copy(source: SourceView, target: TargetView, selection: CopySelection) -> CopyPlan:
    """Decide what to bring to the target, or refuse it. Pure: the same views give the same plan."""
    check_same_history(source, target)
    shape = _shape(source.control, source.head.number, target, selection)
    last = target.head.number if target.head is not None else 0
    records_of = {*shape.manifests, *shape.below, *({last} & set(source.checkpoints))}
    return CopyPlan(
        store_id=source.control.store_id,
        floor=shape.floor,
        rebase=shape.rebase,
        manifests=shape.manifests,
        below=shape.below,
        pins=_plan_pins(source, shape, selection),
        deleted=frozenset(n for n in shape.manifests if _is_deleted(source, n)),
        objects=tuple(sorted(set(source.ranges) - target.held)),
        data_key_ids=tuple(sorted(source.data_key_ids)),
        records_of=tuple(sorted(records_of)),
    )


def _is_deleted(source: SourceView, number: int) -> bool:
    """Whether a checkpoint is deleted at the source; its tombstone may be still to come."""
    is_tombstone = source.checkpoints[number].kind is ManifestKind.TOMBSTONE
    return is_tombstone or number in source.control.deleted


def check_same_history(source: SourceView, target: TargetView) -> None:
    """Refuse a target that holds another history, or one that has diverged."""
    if target.control is not None and target.control.store_id != source.control.store_id:
        raise Diverged("the target holds the history of another store", hint="copy to an empty URL")
    there = target.head
    if there is None:
        return
    here = source.checkpoints.get(there.number)
    if there.number > source.head.number or (here is not None and not here.is_same(there)):
        raise diverged(there.number)
    if here is None and there.run_id not in (source.head.run_id, *source.head.earlier_runs):
        raise diverged(there.number)


def diverged(number: int) -> Diverged:
    """The error for a target whose history is not a part of the source's."""
    return Diverged(
        f"the target has diverged: its checkpoint {number} is not the source's",
        hint="a query runs on the target, or did; copy to another URL, or back from there",
    )


def _plan_pins(source: SourceView, shape: _Shape, selection: CopySelection) -> dict[str, Pin]:
    """The names under which checkpoints are pinned at the target: the source's, or one of our own."""
    pins = {
        name: pin
        for name, pin in savepoints(source.control).items()
        if pin.number in shape.wanted
        and (selection.everything or pin.number < shape.floor or name in selection.savepoint_names)
    }
    named = {pin.number for pin in pins.values()}
    for number in shape.below:
        if number not in named:
            pins[f"copy-{pad(number)}"] = Pin(number, source.checkpoints[number].sha256)
    return pins
