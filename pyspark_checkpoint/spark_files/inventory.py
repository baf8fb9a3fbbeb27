"""Which files of a checkpoint directory make up the checkpoint "right after batch N". Pure.

To resume after N Spark needs ``metadata``, ``offsets/N-1``, ``offsets/N``, ``commits/N``, the logs of its
sources cut to the offset of N, what describes the operators, and for every state store the files
that give version N + 1. Nothing newer may be among them: a file source's log that is too long would
silently skip files. If Spark has planned the batch after N already, what that needs is kept beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest_parts import MAX_PLANNED_FILES, PlannedBatch
from pyspark_checkpoint.spark_files.listing import CheckpointListing, check_capturable
from pyspark_checkpoint.spark_files.logs import CommitLog, OffsetLog, OperatorInfo, StoreInfo
from pyspark_checkpoint.spark_files.names import (
    METADATA,
    StateFile,
    StateFileKind,
    StoreId,
    commits_file,
    offsets_file,
)
from pyspark_checkpoint.spark_files.source_logs import plan_source_logs
from pyspark_checkpoint.spark_files.state_artifacts import operator_key
from pyspark_checkpoint.spark_files.versions import FileFacts, NotListed, StateChain, plan_chain

MAX_SOURCE_SCHEMAS = 64
MAX_SOURCE_SCHEMA_BYTES = 1024 * 1024
NODES_HINT = "with a file: location every node must see the same path, the driver too"


@dataclass(frozen=True, slots=True)
class CapturedFile:
    """A file that belongs to the checkpoint: its path in the directory, and which version it is of.

    ``is_named_once`` says that a name is never used for other bytes, so that a file of this name in an
    earlier checkpoint is this file.
    """

    path: str
    facts: FileFacts
    epoch: int
    is_delta: bool = False
    is_named_once: bool = False


@dataclass(frozen=True, slots=True)
class OperatorFiles:
    """The state of one operator: for each partition its files, in the order to apply them."""

    operator: int
    name: str
    partitions: Mapping[int, tuple[CapturedFile, ...]]


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """Everything that the checkpoint of batch ``batch_id`` consists of. Before the first batch it is -1."""

    batch_id: int
    operators: tuple[OperatorFiles, ...]
    files: tuple[CapturedFile, ...]
    planned: PlannedBatch | None = None
    """The batch after it, if Spark has planned it; its files are among ``files``."""

    def all_files(self) -> Iterator[CapturedFile]:
        """Every file, state first."""
        for operator in self.operators:
            for files in operator.partitions.values():
                yield from files
        yield from self.files


def plan_chains(
    listing: CheckpointListing,
    batch_id: int,
    commits: Mapping[int, CommitLog],
    operators: Mapping[int, OperatorInfo],
    *,
    partitions: int | None = None,
    together: Set[StateFile] = frozenset(),
) -> tuple[StateChain, ...]:
    """Choose for every state store the files that give version ``batch_id + 1``.

    ``commits`` are the commit logs up to ``batch_id`` that exist; only format version 2 needs more than
    the newest. Every partition of every store that an operator declares must be there; of an operator
    that keeps all its state in one (a global aggregation, a limit) the first. ``partitions`` is what the
    batch's offset log pins: after a rescale, what lies beyond it, or is declared beyond it, is past.
    ``together``: see ``versions.plan_chain``.
    """
    check_capturable(listing, batch_id)
    chains = [
        plan_chain(owner, batch_id + 1, files, unique_ids_of(owner, commits, batch_id, operators), together)
        for owner, files in sorted(listing.state.items())
        if partitions is None or owner.partition < partitions
    ]
    check_coverage({chain.owner for chain in chains}, operators, partitions)
    return tuple(chains)


def unique_ids_of(
    owner: StoreId, commits: Mapping[int, CommitLog], batch_id: int, operators: Mapping[int, OperatorInfo]
) -> dict[int, str]:
    """The unique id of each version of a state store, as the commit logs name it; empty in version 1."""
    info = operators.get(owner.operator)
    names = [store.name for store in info.stores] if info else []
    index = names.index(owner.store) if owner.store in names else 0
    found: dict[int, str] = {}
    for batch, log in commits.items():
        partitions = log.unique_ids.get(owner.operator, ())
        if batch <= batch_id and owner.partition < len(partitions):
            stores = partitions[owner.partition]
            if index < len(stores):
                found[batch + 1] = stores[index]
    return found


def plan_start(listing: CheckpointListing) -> CapturePlan:
    """What a query has before its first batch, to be completed by ``plan_ahead``."""
    _check_source_schemas(listing)
    paths = (METADATA, *listing.source_schemas)
    return CapturePlan(-1, (), tuple(CapturedFile(path, facts_of(listing, path), 0) for path in paths))


def plan_ahead(plan: CapturePlan, listing: CheckpointListing, offsets: OffsetLog) -> CapturePlan:
    """Add the batch after the plan's, which Spark has planned with these offsets and may run at any time.

    It needs its offsets, and what its sources have logged since the batch before: without that a file
    source does not know which files the offsets speak of. Refused if the listing does not have it all.
    """
    batch, present = plan.batch_id + 1, {file.path for file in plan.files}
    logs = plan_source_logs(listing.sources, offsets)
    paths = [offsets_file(batch), *(path for path in logs if path not in present)]
    if len(paths) > MAX_PLANNED_FILES:
        raise RefusedError(
            f"the sources have {len(paths) - 1} log entries for batch {batch} alone",
            hint="restart the query: the next batch has an entry of its own",
        )
    ahead = (CapturedFile(path, facts_of(listing, path), max(0, plan.batch_id)) for path in paths)
    return replace(plan, files=(*plan.files, *ahead), planned=PlannedBatch(batch, tuple(paths)))


def plan_operators(
    chains: Sequence[StateChain],
    listing: CheckpointListing,
    shared: Mapping[str, tuple[str, ...]],
    operators: Mapping[int, OperatorInfo],
    *,
    first_epoch: int = 0,
) -> tuple[OperatorFiles, ...]:
    """The files of the chains by operator and partition; one that several chains need is there once.

    ``first_epoch`` is the epoch of Spark's batch 0, where that is not 0.
    """
    by_operator: dict[int, dict[int, dict[str, CapturedFile]]] = {}
    for chain in chains:
        partitions = by_operator.setdefault(chain.owner.operator, {})
        files = partitions.setdefault(chain.owner.partition, {})
        for file in _chain_files(chain, listing, shared, first_epoch):
            files.setdefault(file.path, file)
    return tuple(
        OperatorFiles(
            operator,
            operator_key(operator, operators[operator].name if operator in operators else "unknown"),
            {partition: tuple(files.values()) for partition, files in partitions.items()},
        )
        for operator, partitions in sorted(by_operator.items())
    )


def _chain_files(
    chain: StateChain,
    listing: CheckpointListing,
    shared: Mapping[str, tuple[str, ...]],
    first_epoch: int,
) -> Iterator[CapturedFile]:
    for file in chain.files():
        epoch = max(0, file.version - 1 + first_epoch)
        if file.kind is StateFileKind.ZIP:
            for name in shared[file.path]:
                path = f"{chain.owner.directory}/{name}"
                yield CapturedFile(path, facts_of(listing, path), epoch, is_named_once=True)
        yield CapturedFile(
            file.path,
            facts_of(listing, file.path),
            epoch,
            is_delta=not file.kind.is_base,
            is_named_once=file.uid is not None and file.kind is not StateFileKind.ZIP,
        )


def plan_small_files(
    listing: CheckpointListing,
    batch: int,
    offsets: OffsetLog,
    newest_offsets: OffsetLog | None = None,
    *,
    is_committed: bool,
    epoch: int | None = None,
) -> tuple[CapturedFile, ...]:
    """What a checkpoint of ``batch`` needs beside the state: Spark's small logs, and those of its sources.

    ``is_committed``: the batch is done, and ``commits/N`` is taken; else what it begins from is, because
    Spark may run it again. ``epoch`` is the table's, if that is not the batch.
    """
    _check_source_schemas(listing)
    paths = [METADATA, *listing.setup_of(batch), *listing.source_schemas]
    paths += plan_source_logs(listing.sources, offsets, newest_offsets)
    if batch > 0:
        paths.append(offsets_file(batch - 1))
        paths += [] if is_committed else [commits_file(batch - 1)]
    paths.append(offsets_file(batch))
    paths += [commits_file(batch)] if is_committed else []
    of_epoch = batch if epoch is None else epoch
    return tuple(CapturedFile(path, facts_of(listing, path), of_epoch) for path in paths)


def _check_source_schemas(listing: CheckpointListing) -> None:
    """Refuse schema logs that are no such logs: a checkpoint without them could not be trusted."""
    paths = listing.source_schemas
    large = [path for path in paths if listing.facts[path].size_bytes > MAX_SOURCE_SCHEMA_BYTES]
    if len(paths) > MAX_SOURCE_SCHEMAS or large:
        what = f"{large[0]} is too large" if large else f"{paths[0]} is one of {len(paths)}"
        raise RefusedError(
            f"the checkpoint location has more schema logs of sources than a checkpoint takes: {what}",
            hint=f"at most {MAX_SOURCE_SCHEMAS} files of {MAX_SOURCE_SCHEMA_BYTES >> 20} MiB; keep them "
            "outside of the checkpoint location (schemaTrackingLocation, schemaLocation)",
        )


def facts_of(listing: CheckpointListing, path: str) -> FileFacts:
    """What the listing knows of a file that must be there."""
    try:
        return listing.facts[path]
    except KeyError:
        raise NotListed(
            f"{path} is not in the checkpoint location", hint="it was purged; take a newer batch"
        ) from None


def check_coverage(
    present: Set[StoreId], operators: Mapping[int, OperatorInfo], pinned: int | None
) -> None:
    """Refuse if a partition of a store that an operator declares has no state file."""
    unknown = sorted({owner.operator for owner in present} - operators.keys())
    if unknown:
        raise RefusedError(
            f"operator {unknown[0]} has state files, but nothing says what it is",
            hint="its _metadata is missing, and what the operator needs is not known without it",
        )
    for info in operators.values():
        for store in info.stores:
            partitions = partitions_of(info, store, pinned)
            missing = [p for p in range(partitions) if StoreId(info.operator, p, store.name) not in present]
            if missing:
                raise RefusedError(
                    f"operator {info.operator} ({info.name}) has {partitions} partitions of store "
                    f"{store.name!r}, but partition {missing[0]} has no state file here",
                    hint=NODES_HINT,
                )


def partitions_of(info: OperatorInfo, store: StoreInfo, pinned: int | None) -> int:
    """In how many partitions a store really is; ``pinned`` is what the offset log says."""
    return 1 if info.is_single else pinned or store.partitions
