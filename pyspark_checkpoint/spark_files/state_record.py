"""What a manifest that commits rows and state together must name. Pure.

The sink commits batch N before Spark writes ``commits/N``. So its manifest names two states: that of
version N, from which Spark runs N again ("before N"), and that of version N + 1, from which it goes on
once ``commits/N`` is known ("after N"). In format version 2 only ``commits/N`` says which files of
version N + 1 count; all that are there are named until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import count
from types import MappingProxyType

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest_parts import DeclaredStore, StateRecord
from pyspark_checkpoint.spark_files.inventory import (
    CapturedFile,
    check_coverage,
    partitions_of,
    unique_ids_of,
)
from pyspark_checkpoint.spark_files.listing import CheckpointListing
from pyspark_checkpoint.spark_files.logs import CommitLog, OperatorInfo, StoreInfo
from pyspark_checkpoint.spark_files.names import (
    METADATA,
    StateFile,
    StateFileKind,
    StoreId,
    commits_file,
    offsets_file,
)
from pyspark_checkpoint.spark_files.versions import FileFacts, StateChain, plan_chain

SettledIds = Mapping[StoreId, Mapping[int, str]]
"""Format version 2: the unique id of each version of a store, where a manifest has settled it."""
NOTHING_SETTLED: SettledIds = MappingProxyType({})


def declared_operators(record: StateRecord) -> dict[int, OperatorInfo]:
    """The operators as far as a manifest's record knows them: their stores, in Spark's order."""
    found: dict[int, list[StoreInfo]] = {}
    for store in record.stores:
        found.setdefault(store.operator, []).append(StoreInfo(store.name, store.partitions))
    return {number: OperatorInfo(number, "", tuple(stores)) for number, stores in found.items()}


def declared_owners(record: StateRecord, there: Iterable[StoreId]) -> tuple[StoreId, ...]:
    """Every partition of every store that is declared and among ``there``, in order.

    How many partitions a manifest declares is a number that anybody may have written: nothing is done
    for each of them that has no file. See ``absent_owners``.
    """
    declared = {(store.operator, store.name): store.partitions for store in record.stores}
    known = (
        owner for owner in there if 0 <= owner.partition < declared.get((owner.operator, owner.store), 0)
    )
    return tuple(sorted(known))


def absent_owners(record: StateRecord, there: Iterable[StoreId]) -> Iterator[tuple[StoreId, int]]:
    """For each store the first partition that is declared and not ``there``, and how many are absent."""
    present: dict[tuple[int, str], set[int]] = {}
    for owner in declared_owners(record, there):
        present.setdefault((owner.operator, owner.store), set()).add(owner.partition)
    for store in record.stores:
        found = present.get((store.operator, store.name), set())
        if len(found) < store.partitions:
            first = next(number for number in count() if number not in found)
            yield StoreId(store.operator, first, store.name), store.partitions - len(found)


def record_state(
    batch: int,
    operators: Mapping[int, OperatorInfo],
    files: Iterable[CapturedFile],
    changeable: Iterable[StateFile],
    *,
    partitions: int | None,
) -> StateRecord:
    """The record of what was planned. ``changeable`` are the files that may be written again."""
    facts = {file.path: file.facts for file in files}
    return StateRecord(
        batch,
        tuple(
            DeclaredStore(info.operator, store.name, partitions_of(info, store, partitions))
            for _, info in sorted(operators.items())
            for store in info.stores
        ),
        {
            file.path: facts[file.path].modified_ms
            for file in changeable
            if file.uid is None or file.kind is StateFileKind.ZIP
        },
    )


def plan_store_chains(
    owner: StoreId,
    batch: int,
    files: Mapping[StateFile, FileFacts],
    unique_ids: Mapping[int, str],
    together: Set[StateFile] = frozenset(),
) -> tuple[StateChain, ...]:
    """The chains that give ``owner`` before and after ``batch``; raises if they are not all there.

    ``unique_ids`` are those of the versions up to ``batch``. Of version ``batch + 1`` every id counts.
    ``together``: see ``versions.plan_chain``.
    """
    earlier = {version: uid for version, uid in unique_ids.items() if version <= batch}
    chains = [plan_chain(owner, batch, files, earlier, together)] if batch > 0 else []
    candidates = sorted({file.uid for file in files if file.version == batch + 1 and file.uid})
    if not candidates:
        return (*chains, plan_chain(owner, batch + 1, files, earlier, together))
    return (
        *chains,
        *(plan_chain(owner, batch + 1, files, {**earlier, batch + 1: uid}) for uid in candidates),
    )


def plan_both_points(
    listing: CheckpointListing,
    batch: int,
    commits: Mapping[int, CommitLog],
    operators: Mapping[int, OperatorInfo],
    *,
    partitions: int | None = None,
    together: Set[StateFile] = frozenset(),
    settled: SettledIds = NOTHING_SETTLED,
) -> tuple[StateChain, ...]:
    """The chains of every state store before and after ``batch``, which is not committed yet.

    ``commits`` are the commit logs before ``batch``, of which only format version 2 needs any, and of
    those only what is not ``settled``. Refused if a partition that an operator declares is not there at
    both versions.
    """
    check_committable(listing, batch)
    owners = [owner for owner in listing.state if partitions is None or owner.partition < partitions]
    check_coverage(set(owners), operators, partitions)
    return tuple(
        chain
        for owner in sorted(owners)
        for chain in plan_store_chains(
            owner,
            batch,
            listing.state[owner],
            ids_before(owner, batch, commits, operators, settled),
            together,
        )
    )


def ids_before(
    owner: StoreId,
    batch: int,
    commits: Mapping[int, CommitLog],
    operators: Mapping[int, OperatorInfo],
    settled: SettledIds,
) -> dict[int, str]:
    """The unique id of each version up to ``batch``: as the commit logs say, else as it was settled."""
    return {**settled.get(owner, {}), **unique_ids_of(owner, commits, batch - 1, operators)}


def check_committable(listing: CheckpointListing, batch: int) -> None:
    """Refuse a batch whose logs are not there; with asynchronous progress tracking they are not."""
    needed = [METADATA, offsets_file(batch)]
    if batch > 0:
        needed += [offsets_file(batch - 1), commits_file(batch - 1)]
    for path in needed:
        if path not in listing.facts:
            raise RefusedError(
                f"the checkpoint location has no {path}, which batch {batch} needs to be restored",
                hint="the driver must see the location, and Spark must log every batch (no real-time "
                "mode, no asynchronous progress tracking); or set the option state to off",
            )
