"""What a task takes of Spark's own state: the new files of its partitions, to go up with its rows.

Called when the task's rows are read to their end: Spark has then written the state of the partitions
that gave them. A partition that another task still writes is left to the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from pyspark_checkpoint.capture.upload import ReadGroup, UploadTarget, read_group, upload_group
from pyspark_checkpoint.capture.upload_plan import UploadPlan, plan_uploads
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import RequestCount
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.sink.query import TaskFacts
from pyspark_checkpoint.sink.state_plan import StatePlan
from pyspark_checkpoint.sink.worker_cache import ProcessCache
from pyspark_checkpoint.spark_files.inventory import CapturePlan, OperatorFiles, plan_operators
from pyspark_checkpoint.spark_files.listing import CheckpointListing
from pyspark_checkpoint.spark_files.location import CheckpointLocation, FileGone, LocationSpec
from pyspark_checkpoint.spark_files.log_reader import LocationLogs
from pyspark_checkpoint.spark_files.logs import CommitLog, OperatorInfo
from pyspark_checkpoint.spark_files.names import StateFile, StoreId
from pyspark_checkpoint.spark_files.state_record import (
    NOTHING_SETTLED,
    SettledIds,
    ids_before,
    plan_store_chains,
)
from pyspark_checkpoint.spark_files.versions import FileFacts, StateChain

MOST_BYTES_WITH_ROWS = 64 * 1024 * 1024
"""State beyond this goes up in objects of its own, so that a task's memory stays bounded."""
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class CoveredFile:
    """A state file as a task saw it, and where its bytes are."""

    path: str
    facts: FileFacts
    ref: ArtifactRef


@dataclass(frozen=True, slots=True)
class TakenState:
    """A task's share: what is durable already, and what goes up with its rows."""

    covered: tuple[CoveredFile, ...] = ()
    group: ReadGroup = field(default_factory=ReadGroup)
    requests: RequestCount = field(default_factory=RequestCount)

    @property
    def items(self) -> tuple[StagedItem, ...]:
        """What is to be staged with the rows."""
        return self.group.staged

    def all_covered(self, refs: Sequence[ArtifactRef]) -> tuple[CoveredFile, ...]:
        """Everything, once ``items`` are staged at ``refs``."""
        new = (
            CoveredFile(item.file.path, item.file.facts, ref)
            for item, ref in zip(self.group.items, refs, strict=True)
        )
        return (*self.covered, *new)


@dataclass(frozen=True, slots=True)
class WatchedLocation:
    """A checkpoint location that this process has open, and what it has read there."""

    location: CheckpointLocation
    logs: LocationLogs


_LOCATIONS: ProcessCache[WatchedLocation] = ProcessCache()


def open_location(spec: LocationSpec, run_id: str = "") -> WatchedLocation:
    """The location, opened once per process and run: between two runs it may be restored."""
    key = (spec.url, tuple(sorted(spec.options.items())), run_id)
    return _LOCATIONS.get(key, lambda: _watched(spec.open()))


def _watched(location: CheckpointLocation) -> WatchedLocation:
    return WatchedLocation(location, LocationLogs(location))


def take_state(plan: StatePlan, task: TaskFacts, target: UploadTarget, first_epoch: int) -> TakenState:
    """Take a task's share. What Spark purges meanwhile is looked for again, then left to the driver."""
    watched = open_location(plan.location, task.run_id)
    for _ in range(_ATTEMPTS):
        try:
            captured, opened = _plan_share(plan, task, watched, first_epoch)
            known = plan.known(captured.all_files(), task.batch_id, task.run_id, opened)
            uploads = plan_uploads(captured, plan.held, known, opened, group_bytes=MOST_BYTES_WITH_ROWS)
            return _read(uploads, captured, watched.location, target)
        except FileGone:
            continue
    return TakenState()


def _plan_share(
    plan: StatePlan, task: TaskFacts, watched: WatchedLocation, first_epoch: int
) -> tuple[CapturePlan, dict[str, str]]:
    """What there is to take, and the digests of the snapshots that were looked into for it."""
    prefixes = plan.prefixes(task.partition, task.run_id)
    listing = watched.location.listing(*prefixes)
    batch, logs, settled = task.batch_id, watched.logs, plan.settled(prefixes)
    operators = plan.operators(task.run_id)
    if operators is None:
        operators = logs.declared_operators(listing, batch)
    commits = commits_before(logs, listing, batch, settled)
    together = logs.written_together(listing, batch + 1)
    chains = [
        chain
        for owner in sorted(listing.state)
        if plan.is_for(task.partition, owner.partition) and owner.operator in operators
        for chain in _find_chains(
            owner,
            batch,
            listing.state[owner],
            ids_before(owner, batch, commits, operators, settled),
            together,
        )
    ]
    planned = plan_present(chains, listing, logs.shared_files(chains, listing), operators, first_epoch)
    return CapturePlan(batch, planned, ()), logs.opened(chains, listing)


def plan_present(
    chains: Sequence[StateChain],
    listing: CheckpointListing,
    shared: Mapping[str, tuple[str, ...]],
    operators: Mapping[int, OperatorInfo],
    first_epoch: int,
) -> tuple[OperatorFiles, ...]:
    """The files of the chains; ``FileGone`` if a snapshot needs one that came or went after the listing."""
    try:
        return plan_operators(chains, listing, shared, operators, first_epoch=first_epoch)
    except RefusedError as error:
        raise FileGone(error.message) from error


def commits_before(
    logs: LocationLogs, listing: CheckpointListing, batch: int, settled: SettledIds = NOTHING_SETTLED
) -> dict[int, CommitLog]:
    """The commit logs that say which of the listed files count; none in format version 1.

    What was ``settled`` of a store is not read again, but for the version that ``batch`` began from.
    """
    versions = {
        file.version
        for owner, files in listing.state.items()
        for file in files
        if file.uid and min(batch - 1, max(settled.get(owner, ()), default=0)) < file.version <= batch
    }
    return logs.read_commits(version - 1 for version in sorted(versions))


def _find_chains(
    owner: StoreId,
    batch: int,
    files: Mapping[StateFile, FileFacts],
    unique_ids: Mapping[int, str],
    together: Set[StateFile],
) -> tuple[StateChain, ...]:
    try:
        return plan_store_chains(owner, batch, files, unique_ids, together)
    except RefusedError:
        # Another task still writes this partition. The driver looks again when all are done.
        return ()


def _read(
    uploads: UploadPlan, captured: CapturePlan, location: CheckpointLocation, target: UploadTarget
) -> TakenState:
    facts = {file.path: file.facts for file in captured.all_files()}
    large = [upload_group(location, target, group) for group in uploads.groups]
    group = read_group(location, target, uploads.here)
    refs = dict(uploads.reused) | dict(group.reused)
    for answer in large:
        refs |= dict(answer.refs)
    return TakenState(
        tuple(CoveredFile(path, facts[path], ref) for path, ref in refs.items()),
        group,
        add_requests(answer.requests for answer in large),
    )


def add_requests(counts: Iterable[RequestCount]) -> RequestCount:
    """What several uploads cost together."""
    every = list(counts)
    return RequestCount(
        sum(count.puts for count in every),
        sum(count.gets for count in every),
        sum(count.bytes for count in every),
    )
