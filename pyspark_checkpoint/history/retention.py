"""Retention: deciding which checkpoints may go, and letting them go without ever making a hole.

The floor is raised first; from that moment nothing below it counts for anybody. Only then is the
live set read, and only what no live checkpoint needs is deleted. A crash leaves garbage between
``swept`` and the floor, which the next prune removes.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.envelope import Mac
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.records import Control, Pin
from pyspark_checkpoint.format.summary import ManifestSummary, decode_summary
from pyspark_checkpoint.history.control import ControlState, drop_stale_pins, read_control, swap_control
from pyspark_checkpoint.history.deletion import Removal, finish_deletions, remove_dead
from pyspark_checkpoint.history.head import Head
from pyspark_checkpoint.history.live_set import (
    LiveSetChanged,
    SummaryCache,
    find_summary,
    missing_manifest,
    settle_live_set,
)
from pyspark_checkpoint.store.base import ObjectStore

_OVERTAKEN = "another prune is running, and finishes this"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What is kept, whoever prunes: sink, listener, ``CheckpointStore`` or ``ckpt prune``.

    The newest ``keep`` distinct epochs, every checkpoint made at or after ``keep_newer_than_ms``, and
    always the head and every pinned one. With both limits a checkpoint goes only if both let it go; with
    none the floor stays, and only what an earlier prune left is removed.
    """

    keep: int | None = None
    keep_newer_than_ms: int | None = None

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise RefusedError(
                f"cannot keep {self.keep} epochs; the newest one always stays", hint="keep at least 1"
            )


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a prune would do: raise the floor to ``floor`` and remove ``removed``."""

    floor: int
    head_number: int
    removed: tuple[int, ...]
    kept: tuple[int, ...]
    pinned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a prune did. ``stopped`` says why it did not finish, if so; the next one goes on."""

    removal: Removal = field(default_factory=Removal)
    stopped: str | None = None


def prune_history(
    store: ObjectStore,
    head: Head,
    policy: RetentionPolicy,
    clock: Clock,
    *,
    cache: SummaryCache | None = None,
    mac: Mac | None = None,
) -> PruneResult:
    """Remove what ``policy`` lets go from the history that ends with ``head``. Repeatable after a crash."""
    recent = read_recent(store, head, policy, cache=cache)
    return execute_prune(store, plan_prune(recent, head.control, policy), clock, cache=cache, mac=mac)


def plan_prune(history: Sequence[ManifestSummary], control: Control, policy: RetentionPolicy) -> PrunePlan:
    """Decide what may go. Pure: the same history gives the same plan.

    ``history`` is the newest part of the history, down to where the decision falls; the head is in it.
    """
    newest_first = sorted(history, key=lambda summary: -summary.number)
    floors = []
    if policy.keep is not None:
        floors.append(_floor_by_epochs(newest_first, policy.keep, control.deleted))
    if policy.keep_newer_than_ms is not None:
        floors.append(_floor_by_age(newest_first, policy.keep_newer_than_ms))
    floor = max(control.floor, min(floors, default=control.floor))
    pinned = control.pinned_numbers()
    head_number = newest_first[0].number
    return PrunePlan(
        floor=floor,
        head_number=head_number,
        removed=tuple(n for n in range(control.floor, floor) if n not in pinned),
        kept=tuple(range(floor, head_number + 1)),
        pinned=tuple(sorted(n for n in pinned if n < floor)),
    )


def _floor_by_epochs(newest_first: Sequence[ManifestSummary], keep: int, deleted: Set[int]) -> int:
    """The lowest number such that from it to the head there are at most ``keep`` distinct epochs."""
    epochs: set[int] = set()
    floor = newest_first[0].number
    for summary in newest_first:
        if not _is_deleted(summary, deleted):
            epochs.add(summary.epoch)
        if len(epochs) > keep:
            break
        floor = summary.number
    return floor


def _floor_by_age(newest_first: Sequence[ManifestSummary], keep_newer_than_ms: int) -> int:
    """The lowest number that is young enough; times never fall from one number to the next."""
    floor = newest_first[0].number
    for summary in newest_first:
        if summary.timestamp_ms < keep_newer_than_ms:
            break
        floor = summary.number
    return floor


def _is_deleted(summary: ManifestSummary, deleted: Set[int]) -> bool:
    return summary.kind is ManifestKind.TOMBSTONE or summary.number in deleted


def read_recent(
    store: ObjectStore, head: Head, policy: RetentionPolicy, *, cache: SummaryCache | None = None
) -> list[ManifestSummary]:
    """Read as much of the history, newest first, as ``plan_prune`` needs to decide, and no more."""
    recent: list[ManifestSummary] = []
    epochs: set[int] = set()
    for number in range(head.number, head.control.floor - 1, -1):
        summary = cache.get(number) if cache is not None else None
        if summary is None and number == head.number:
            summary = decode_summary(head.data, manifest_key(number))
        summary = summary or find_summary(store, number)
        if summary is None:
            if read_control(store, store_id=head.control.store_id).control.floor > number:
                break  # somebody else pruned it meanwhile; what is below the floor decides nothing
            raise missing_manifest(number)
        recent.append(summary)
        if not _is_deleted(summary, head.control.deleted):
            epochs.add(summary.epoch)
        limit_ms = policy.keep_newer_than_ms
        enough = policy.keep is None or len(epochs) > policy.keep
        old_enough = limit_ms is None or summary.timestamp_ms < limit_ms
        if enough and old_enough:
            break
    return recent


def execute_prune(
    store: ObjectStore,
    plan: PrunePlan,
    clock: Clock,
    *,
    cache: SummaryCache | None = None,
    mac: Mac | None = None,
) -> PruneResult:
    """Do what ``plan`` says, and finish what earlier prunes left. The order of the steps is the safety."""
    dropped: set[Pin] = set()
    control = raise_floor(store, plan, clock, dropped).control
    forget_below(cache, control.floor)
    live = settle_live_set(store, control, cache=cache)
    if live is None:
        return PruneResult(stopped=_OVERTAKEN)
    leftovers = {pin.number for pin in dropped if pin.number < control.swept}
    numbers = sorted(leftovers | set(range(control.swept, control.floor)))
    try:
        removal = remove_dead(store, live, numbers) + finish_deletions(store, live, clock, mac=mac)
    except LiveSetChanged:
        return PruneResult(stopped=_OVERTAKEN)
    raise_swept(store, control, clock)
    return PruneResult(removal)


def raise_floor(store: ObjectStore, plan: PrunePlan, clock: Clock, dropped: set[Pin]) -> ControlState:
    """Rule 8, first step: raise the floor by compare-and-swap, and drop pins that protect nothing now."""

    def change(control: Control) -> Control | None:
        pins = drop_stale_pins(control, plan.head_number)
        dropped.update(pin for name, pin in control.pins.items() if name not in pins)
        if plan.floor <= control.floor and len(pins) == len(control.pins):
            return None
        floor = max(plan.floor, control.floor)
        deleted = frozenset(number for number in control.deleted if number >= floor)
        return control.changed(floor=floor, pins=pins, deleted=deleted)

    return swap_control(store, change, clock)


def raise_swept(store: ObjectStore, done: Control, clock: Clock) -> None:
    """Rule 8, last step: record that nothing unpinned is left below the floor of ``done``."""

    def change(control: Control) -> Control | None:
        return control.changed(swept=done.floor) if control.swept < done.floor else None

    if done.swept < done.floor:
        swap_control(store, change, clock, store_id=done.store_id)


def forget_below(cache: SummaryCache | None, floor: int) -> None:
    """What is below the floor is asked for no more; a commit and a prune may be here at once."""
    if cache is not None:
        for number in list(cache):
            if number < floor:
                cache.pop(number, None)
