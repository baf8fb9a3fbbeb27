"""Deleting checkpoints that no longer live: what only they name, their side records, then themselves.

A manifest goes last, so that a crash leaves the list of what is still to be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import count

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.keys import (
    MANIFESTS_PREFIX,
    committed_key,
    failed_key,
    manifest_key,
    parse_seal_key,
    parse_status_key,
    seal_key,
)
from pyspark_checkpoint.format.settled import ListRef
from pyspark_checkpoint.format.summary import ManifestSummary
from pyspark_checkpoint.history.control import has_changed_since
from pyspark_checkpoint.history.live_set import LiveSetChanged, Living, find_summary
from pyspark_checkpoint.history.manifest_reader import exists
from pyspark_checkpoint.history.settle import kept_below, read_list
from pyspark_checkpoint.store.base import ObjectStore

_BATCH = 100


@dataclass(frozen=True, slots=True)
class Removal:
    """What was deleted: checkpoint numbers, and how many objects in all."""

    numbers: tuple[int, ...] = ()
    object_count: int = 0

    def __add__(self, other: Removal) -> Removal:
        return Removal(self.numbers + other.numbers, self.object_count + other.object_count)


def remove_dead(store: ObjectStore, living: Living, numbers: Iterable[int]) -> Removal:
    """Delete the dead among ``numbers`` and whatever nothing living needs. Repeatable after a crash."""
    dead = [number for number in numbers if number not in living.manifests]
    total = Removal()
    for start in range(0, len(dead), _BATCH):
        total += _remove_batch(store, living, dead[start : start + _BATCH])
    return total


def _remove_batch(store: ObjectStore, living: Living, numbers: Sequence[int]) -> Removal:
    named: set[str] = set()
    lists: list[ListRef] = []
    records: list[str] = []
    found: list[int] = []
    for number in numbers:
        try:
            summary = find_summary(store, number)
        except FormatError:
            # Dead and damaged: what it named cannot be told; cleanup_orphans finds it by its number.
            found.append(number)
            records.append(seal_key(number))
            continue
        if summary is not None:
            found.append(number)
            named |= only_named_by_dead(summary, living)
            lists.extend(summary.settled)
            records.extend(side_records(store, summary))
    manifests = [manifest_key(number) for number in found]
    removed = remove_unnamed(store, named, lists, living)
    for keys in (records, manifests):
        if keys:
            store.delete(keys)
    return Removal(tuple(found), removed + len(records) + len(manifests))


def only_named_by_dead(summary: ManifestSummary, living: Living) -> frozenset[str]:
    """The objects that a dead checkpoint names and no living one does, but perhaps a list of it."""
    return summary.paths - living.paths


def remove_unnamed(store: ObjectStore, named: Set[str], lists: Iterable[ListRef], living: Living) -> int:
    """Delete what dead manifests name, ``lists`` of them included, and nothing living does; how many.

    What is below a dead list goes before the list, so that a crash leaves the way to the rest. Lists that
    live, and all below them, are not looked into, but for those that may name what is to go. If one of
    them is gone because somebody else prunes or deletes, ``LiveSetChanged``: only that one knows the rest.
    """
    try:
        dead = named - kept_below(store, living.lists, named)
    except FormatError:
        if has_changed_since(store, living.control):
            raise LiveSetChanged from None
        raise
    by_path = {ref.path: ref for ref in lists if ref.path in dead}
    count = 0
    for ref in by_path.values():
        try:
            content = read_list(store, ref)
        except FormatError:
            # Gone, or damaged: what it named cannot be told; cleanup_orphans finds it by its number.
            continue
        count += remove_unnamed(store, content.paths() - living.paths, content.lists, living)
    if dead:
        store.delete(sorted(dead))
    return count + len(dead)


def side_records(store: ObjectStore, summary: ManifestSummary) -> Iterator[str]:
    """The names of a checkpoint's seal and status records, from its sinks' names, without a LIST."""
    yield seal_key(summary.number)
    for sink in summary.sink_names:
        yield committed_key(summary.number, sink)
        for failure in count():
            key = failed_key(summary.number, sink, failure)
            if not exists(store, key):
                break
            yield key


def remove_lost_records(store: ObjectStore, head: int, lost: int) -> None:
    """Delete the seals and statuses of the numbers after ``head`` up to ``lost``, whose manifests are gone.

    Records are created once. Those of the lost would stand in the way of whoever is given their numbers.
    A number that has a manifest by now is left alone. Two rollbacks at once may still take a record from
    each other: then a batch is run, or a sink driven, once more than needed.
    """
    found: dict[int, list[str]] = {}
    for info in store.list(MANIFESTS_PREFIX, start_after=manifest_key(head)):
        number = _number_of_record(info.key)
        if number is not None and head < number <= lost:
            found.setdefault(number, []).append(info.key)
    dead = [
        key for number, keys in found.items() if not exists(store, manifest_key(number)) for key in keys
    ]
    if dead:
        store.delete(dead)


def _number_of_record(key: str) -> int | None:
    status = parse_status_key(key)
    return parse_seal_key(key) if status is None else status.number
