"""Moving settled parts of a table from its manifest to lists, and following lists to their parts.

``format.settled`` says what a list is. What holds:

* A part is moved when no later epoch can rewrite it, and only if it is older than the manifest's own epoch,
  so that an epoch that is run again never has to be taken out of a list.
* A commit that moves parts reads nothing and writes a bounded number of bounded objects: lists of parts
  that are full, and for each level whose lists have become many, one list of them.
* Whoever needs all that a checkpoint needs (verification, copies, clean-up, readers) comes through here.
  Lists that were read once, or that both sides are known to have, are left out with all that is below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import NotFound
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.keys import CheckpointId, number_of
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    RequestCount,
)
from pyspark_checkpoint.format.settled import (
    LIST_LISTS,
    LIST_PARTS,
    ListRef,
    NewList,
    SettledList,
    SettledPart,
    build_list,
    may_hold,
    read_list_bytes,
)
from pyspark_checkpoint.history.manifest_reader import missing_object
from pyspark_checkpoint.history.staging import put_artifact
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.parallel import DEFAULT_CONCURRENCY, iter_bounded
from pyspark_checkpoint.table.compaction import tail_start

_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SettlePlan:
    """An operator's entry after settled parts have moved, and the lists that are to be created before."""

    entry: OperatorSnapshotEntry
    lists: tuple[NewList, ...] = ()


def plan_settle(entry: OperatorSnapshotEntry, attempt: CheckpointId, epoch: int) -> SettlePlan:
    """Decide which parts of an append table move to lists in a commit of ``epoch``. Pure.

    Full lists only: up to ``LIST_PARTS`` settled parts wait in the manifest.
    """
    settled = sorted(_settled_parts(entry, epoch), key=lambda part: (part.ref.made_by, part.partition))
    count = len(settled) // LIST_PARTS * LIST_PARTS
    if not count:
        return SettlePlan(entry)
    made = [
        build_list(attempt, SettledList(parts=tuple(settled[at : at + LIST_PARTS])))
        for at in range(0, count, LIST_PARTS)
    ]
    refs = [*entry.settled, *(new.ref for new in made)]
    while (full := _full_level(refs)) is not None:
        above = build_list(attempt, SettledList(lists=tuple(full)))
        made.append(above)
        gone = {ref.path for ref in full}
        refs = [ref for ref in refs if ref.path not in gone] + [above.ref]
    moved: dict[int, int] = {}
    for part in settled[:count]:
        moved[part.partition] = moved.get(part.partition, 0) + 1
    partitions = tuple(
        replace(part, artifacts=part.artifacts[moved.get(part.partition_id, 0) :])
        for part in entry.partitions
    )
    ordered = tuple(sorted(refs, key=lambda ref: -ref.level))
    return SettlePlan(replace(entry, partitions=partitions, settled=ordered), tuple(made))


def _full_level(refs: Sequence[ListRef]) -> list[ListRef] | None:
    """The oldest lists of the lowest level that has enough of them for a list of its own."""
    levels: dict[int, list[ListRef]] = {}
    for ref in refs:
        levels.setdefault(ref.level, []).append(ref)
    for level in sorted(levels):
        if len(levels[level]) >= LIST_LISTS:
            return levels[level][:LIST_LISTS]
    return None


def _settled_parts(entry: OperatorSnapshotEntry, epoch: int) -> Iterator[SettledPart]:
    """Parts at the beginning of their chains that nothing rewrites any more, in the order of each chain.

    Within a chain the numbers of the checkpoints that made the parts never fall, so that ordering all by
    them keeps the order of each chain.
    """
    for part in entry.partitions:
        newest = 0
        for ref in part.artifacts[: tail_start([ref.decoded_bytes for ref in part.artifacts])]:
            if ref.epoch >= epoch or ref.path is None or ref.made_by < newest:
                break
            newest = ref.made_by
            yield SettledPart(part.partition_id, ref)


def settle_parts(
    store: ObjectStore, draft: CheckpointManifest, operator: str, attempt: CheckpointId, clock: Clock
) -> CheckpointManifest:
    """The draft of a commit with its settled parts in lists, which are durable when this returns."""
    entry = draft.operators.get(operator)
    plan = None if entry is None else plan_settle(entry, attempt, draft.epoch)
    if plan is None or not plan.lists:
        return draft
    for new in plan.lists:
        put_artifact(store, new.ref.path, new.data, clock)
    cost = RequestCount(len(plan.lists), 0, sum(new.ref.size_bytes for new in plan.lists))
    return replace(
        draft,
        operators={**draft.operators, operator: plan.entry},
        requests=RequestCount.total([draft.requests, cost]),
    )


def read_list(store: ObjectStore, ref: ListRef) -> SettledList:
    """The content of a list; a missing one is damage, as a missing artifact is."""
    try:
        data = store.get(ref.path, start=0, end=ref.size_bytes + 1)
    except NotFound:
        raise missing_object(ref.path) from None
    return read_list_bytes(ref, data)


def walk_lists(
    store: ObjectStore,
    refs: Iterable[ListRef],
    *,
    known: set[str] | None = None,
    numbers: Sequence[int] | None = None,
) -> Iterator[tuple[ListRef, SettledList]]:
    """Read these lists and all below, each once, the higher levels first.

    What is in ``known`` is left out with all below it, and what is read is added. With ``numbers`` only
    lists are read that can have something of one of these checkpoints below them.
    """
    seen = set() if known is None else known
    waiting = list(refs)
    while waiting:
        wanted: dict[str, ListRef] = {}
        for ref in waiting:
            if ref.path not in seen and (numbers is None or may_hold(ref, numbers)):
                wanted[ref.path] = ref
        seen.update(wanted)
        waiting = []
        level = list(wanted.values())
        read = iter_bounded(lambda ref: read_list(store, ref), level, DEFAULT_CONCURRENCY)
        for ref, content in zip(level, read, strict=True):
            waiting += content.lists
            yield ref, content


def unfolded(
    store: ObjectStore, entry: OperatorSnapshotEntry, *, without: Set[str] = _NOTHING
) -> OperatorSnapshotEntry:
    """The entry with its settled parts back in their chains, but for the lists ``without``."""
    before: dict[int, list[ArtifactRef]] = {}
    for _, content in walk_lists(store, entry.settled, known=set(without)):
        for part in content.parts:
            before.setdefault(part.partition, []).append(part.ref)
    direct = {part.partition_id: part.artifacts for part in entry.partitions}
    return replace(
        entry,
        partitions=tuple(
            PartitionSnapshotEntry(
                number, (*sorted(before.get(number, ()), key=_in_chain), *direct.get(number, ()))
            )
            for number in sorted(before.keys() | direct.keys())
        ),
        settled=(),
    )


def _in_chain(ref: ArtifactRef) -> tuple[int, int]:
    return ref.epoch, ref.made_by


def unfolded_apart(
    store: ObjectStore, first: CheckpointManifest, second: CheckpointManifest
) -> tuple[CheckpointManifest, CheckpointManifest]:
    """Two manifests to be compared: without the lists that both name, and with all other parts named."""
    common = {ref.path for ref in first.settled()} & {ref.path for ref in second.settled()}

    def apart(manifest: CheckpointManifest) -> CheckpointManifest:
        operators = {
            name: unfolded(store, entry, without=common) if entry.settled else entry
            for name, entry in manifest.operators.items()
        }
        return replace(manifest, operators=operators)

    return apart(first), apart(second)


def paths_below(store: ObjectStore, refs: Iterable[ListRef]) -> frozenset[str]:
    """Every object that these lists name, at any level."""
    found: set[str] = set()
    for _, content in walk_lists(store, refs):
        found |= content.paths()
    return frozenset(found)


def kept_below(store: ObjectStore, refs: Iterable[ListRef], paths: Set[str]) -> frozenset[str]:
    """Which of ``paths`` are named by these lists, or below. Reads only lists that can name one."""
    if not paths:
        return frozenset()
    numbers = sorted({number_of(path) for path in paths})
    found: set[str] = set()
    for _, content in walk_lists(store, refs, numbers=numbers):
        found |= content.paths() & paths
    return frozenset(found)
