"""The live set: every manifest from the floor to the head, and every pinned one.

Whoever deletes anything reads this *after* raising the floor or dropping the pin, and then asks once
more whether the floor is still its own. Nothing that is created later can name an object which no live
manifest named then: rule 1 lets a manifest name only its own, its parent's and pinned ones'.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.format.settled import ListRef
from pyspark_checkpoint.format.summary import ManifestSummary, decode_summary
from pyspark_checkpoint.history.control import has_changed_since, read_control
from pyspark_checkpoint.history.manifest_reader import find_record
from pyspark_checkpoint.store.base import ObjectStore

SummaryCache = MutableMapping[int, ManifestSummary]
"""Summaries of manifests that were at or above the floor when they were read. They never change."""


class LiveSetChanged(Exception):
    """Another prune or deletion removed something while the live set was used: stop, and look again."""


class MissingFromLiveSet(FormatError):
    """A manifest that must exist does not."""


@dataclass(frozen=True, slots=True)
class LiveSet:
    """The live manifests under one control record, by number, and all objects that they name.

    What their lists name is live as well: ``lists`` has those at the top, ``history.settle`` reads them.
    """

    control: Control
    manifests: dict[int, ManifestSummary]
    paths: frozenset[str]

    @property
    def head_number(self) -> int:
        """The highest number seen; 0 if nothing was ever committed."""
        return max(self.manifests, default=0)

    @property
    def lists(self) -> tuple[ListRef, ...]:
        """The lists of settled parts that live manifests name, each once.

        Not those of deleted checkpoints: they may be gone before the manifest becomes a tombstone, or
        before a cache learns of it.
        """
        found = {
            ref.path: ref
            for number, summary in self.manifests.items()
            if number not in self.control.deleted
            for ref in summary.settled
        }
        return tuple(found.values())


def find_summary(store: ObjectStore, number: int) -> ManifestSummary | None:
    """The summary of manifest ``number``, None if it is absent; damaged is an error."""
    data = find_record(store, manifest_key(number))
    return None if data is None else _decode(data, number)


def read_live_set(store: ObjectStore, control: Control, *, cache: SummaryCache | None = None) -> LiveSet:
    """Read the live set under ``control``; one that is missing or unreadable is an error.

    ``cache`` saves reading again what cannot have changed: a number at or above the floor is replaced
    only by its tombstone, which names less.
    """
    manifests: dict[int, ManifestSummary] = {}
    number = control.floor
    while (summary := _cached(store, number, cache)) is not None:
        manifests[number] = summary
        number += 1
    if not manifests:
        raise missing_manifest(control.floor)
    for name, pin in control.pins.items():
        if pin.number < control.floor and pin.number not in manifests:
            manifests[pin.number] = _read_pinned(store, name, pin.number, pin.sha256)
    paths = frozenset[str]().union(*(summary.paths for summary in manifests.values()))
    return LiveSet(control, manifests, paths)


def settle_live_set(
    store: ObjectStore, control: Control, *, cache: SummaryCache | None = None
) -> LiveSet | None:
    """Read the live set and make sure that it was complete; None if another prune or deletion runs.

    A missing manifest is damage only if the control record has not changed since.
    """
    try:
        live = read_live_set(store, control, cache=cache)
    except MissingFromLiveSet:
        if not has_changed_since(store, control):
            raise
        return None
    return live if floor_is_ours(store, control) else None


def floor_is_ours(store: ObjectStore, control: Control) -> bool:
    """Rule 8: whether the floor is still the one for which the live set was read.

    If another pruner raised it meanwhile, what was read as live may have been half deleted.
    """
    return read_control(store, store_id=control.store_id).control.floor == control.floor


def missing_manifest(number: int) -> MissingFromLiveSet:
    """The error for a manifest that must exist and does not; nothing may be deleted then."""
    return MissingFromLiveSet(f"{manifest_key(number)} should be there and is missing; nothing was deleted")


def _cached(store: ObjectStore, number: int, cache: SummaryCache | None) -> ManifestSummary | None:
    known = None if cache is None else cache.get(number)
    if known is not None:
        return known
    found = find_summary(store, number)
    if found is not None and cache is not None:
        cache[number] = found
    return found


def _read_pinned(store: ObjectStore, name: str, number: int, sha256: str) -> ManifestSummary:
    data = find_record(store, manifest_key(number))
    if data is None:
        raise missing_manifest(number)
    if sha256_hex(data) != sha256:
        raise FormatError(
            f"{manifest_key(number)} is not the manifest that {name!r} pins; nothing was deleted"
        )
    return _decode(data, number)


def _decode(data: bytes, number: int) -> ManifestSummary:
    summary = decode_summary(data, manifest_key(number))
    if summary.number != number:
        raise FormatError(f"{manifest_key(number)} is the manifest of checkpoint {summary.number}")
    return summary
