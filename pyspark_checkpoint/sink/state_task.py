"""Spark's own state of a batch, as its tasks see it: the plan that travels to them, and what they collect.

A task collects when its rows are read to their end: Spark has then written the state of the partitions
that gave them. A partition that another task still writes is left to the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import orjson

from pyspark_checkpoint.capture.upload import ReadGroup, UploadTarget, read_group, upload_group
from pyspark_checkpoint.capture.upload_plan import KnownFile, UploadPlan, plan_uploads
from pyspark_checkpoint.format.artifact import ArtifactRef, Tables, decode_artifact, encode_artifact
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind, RequestCount
from pyspark_checkpoint.format.manifest_parts import StateRecord
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.sink.query import TaskFacts
from pyspark_checkpoint.sink.worker_cache import OpenLocation, open_location
from pyspark_checkpoint.spark_files.inventory import (
    CapturedFile,
    CapturePlan,
    OperatorFiles,
    plan_operators,
)
from pyspark_checkpoint.spark_files.listing import CheckpointListing
from pyspark_checkpoint.spark_files.location import CheckpointLocation, FileGone, LocationSpec
from pyspark_checkpoint.spark_files.log_reader import LocationLogs
from pyspark_checkpoint.spark_files.logs import CommitLog, OperatorInfo
from pyspark_checkpoint.spark_files.names import (
    STATE,
    StateFile,
    StateFileKind,
    StoreId,
    parse_state_file,
    partition_of,
    state_directory,
)
from pyspark_checkpoint.spark_files.state_artifacts import state_operators, state_refs
from pyspark_checkpoint.spark_files.state_record import (
    NOTHING_SETTLED,
    SettledIds,
    declared_operators,
    ids_before,
    plan_store_chains,
)
from pyspark_checkpoint.spark_files.versions import FileFacts, NotListed, StateChain

BY_A_BATCH = (ManifestKind.EPOCH, ManifestKind.REPLACEMENT)
"""The kinds of manifests that a batch makes."""
MOST_BYTES_WITH_ROWS = 64 * 1024 * 1024
"""State beyond this goes up in objects of its own, so that a task's memory stays bounded."""
_ATTEMPTS = 3
_NOTHING_OPENED: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    """What a task must know to collect its share of the state. Travels to the tasks."""

    location: LocationSpec
    record: StateRecord | None = None
    """What the head says of its state; None if it has none."""
    held: Mapping[str, ArtifactRef] = field(default_factory=dict)
    """The state files that the head names, by path."""
    shares: Mapping[int, bytes] = field(default_factory=dict)
    """The same by task while the plan travels: a task unpacks its own alone, however many there are."""
    names: Mapping[int, str] = field(default_factory=dict)
    """How Spark calls the operators that the head has state of."""
    head_run: str = ""
    """The run that made the head by a batch; empty for a claim or a rollback."""
    tasks: int = 0
    """How many tasks the batch has; 0 if that is not known."""

    def packed(self) -> StatePlan:
        """The plan as it is sent: what the head names is cut into the tasks' shares."""
        shares: dict[int, dict[str, ArtifactRef]] = {}
        for path, ref in self.held.items():
            shares.setdefault(self.task_of(partition_of(path)), {})[path] = ref
        return replace(self, held={}, shares={task: _pack(share) for task, share in shares.items()})

    def share_of(self, task: int) -> StatePlan:
        """The plan as a task needs it."""
        share = self.shares.get(task)
        return replace(self, shares={}, held=self.held if share is None else _unpack(share))

    def operators(self, run_id: str) -> dict[int, OperatorInfo] | None:
        """What the operators are, which does not change in a run; None if that must be looked up."""
        if self.record is None or not run_id or self.head_run != run_id:
            return None
        found = declared_operators(self.record)
        return {number: replace(info, name=self.names.get(number, "")) for number, info in found.items()}

    def prefixes(self, task: int, run_id: str) -> tuple[str, ...]:
        """Where the files are that a task looks at; everything while the operators are not known."""
        if self.record is None or not self.record.stores:
            return (STATE,)
        partitions: dict[int, int] = {}
        for store in self.record.stores:
            partitions[store.operator] = max(partitions.get(store.operator, 0), store.partitions)
        described = () if self.operators(run_id) is not None else sorted(partitions)
        return (
            *(state_directory(operator, "_metadata") for operator in described),
            *(
                state_directory(operator, partition)
                for operator, count in sorted(partitions.items())
                for partition in range(count)
                if self.task_of(partition) == task
            ),
        )

    def task_of(self, partition: int) -> int:
        """The task that collects a partition of the state; what no task collects, the driver does."""
        return partition % self.tasks if self.tasks > 0 else partition

    def settled(self, prefixes: tuple[str, ...] = ("",)) -> dict[StoreId, dict[int, str]]:
        """Format version 2: the ids of what the head has settled, of files below ``prefixes``."""
        found: dict[StoreId, dict[int, str]] = {}
        for path in self.held:
            file = parse_state_file(path) if path.startswith(prefixes) else None
            if file is not None and file.uid and self.record and file.version <= self.record.batch_id:
                found.setdefault(file.owner, {})[file.version] = file.uid
        return found

    def known(
        self,
        files: Iterable[CapturedFile],
        batch_id: int,
        run_id: str,
        opened: Mapping[str, str] = _NOTHING_OPENED,
    ) -> dict[str, KnownFile]:
        """The files that are the head's without a look at their bytes.

        A repeated batch may reuse a name, so the version that ``batch_id`` makes is always
        looked at. The head's newest version is known by its time. Older ones cannot change while one run
        goes on, and are looked at once when a run begins; but for RocksDB's snapshots, which a second
        executor may upload again, with other files: ``opened`` has the digests of those that were looked
        into, and where the head's are encrypted, their times decide.
        """
        found: dict[str, KnownFile] = {}
        for file in files:
            ref = self.held.get(file.path)
            if ref is not None and self._is_known(file, ref, batch_id, run_id, opened.get(file.path)):
                found[file.path] = KnownFile(file.facts, ref)
        return found

    def _is_known(
        self, file: CapturedFile, ref: ArtifactRef, batch_id: int, run_id: str, digest: str | None
    ) -> bool:
        parsed = parse_state_file(file.path)
        if self.record is None or parsed is None or parsed.version > batch_id:
            return False
        if ref.data_key_id is None and ref.size_bytes != file.facts.size_bytes:
            return False
        if digest is not None and ref.data_key_id is None:
            return digest == ref.sha256
        if parsed.version > self.record.batch_id or parsed.kind is StateFileKind.ZIP:
            return self.record.modified_ms.get(file.path) == file.facts.modified_ms
        return bool(run_id) and self.head_run == run_id


def plan_state(manifest: CheckpointManifest | None, location: LocationSpec, *, tasks: int) -> StatePlan:
    """Plan on top of the head; what it holds already is named again and not uploaded."""
    record = None if manifest is None else manifest.state
    if manifest is None or record is None:
        return StatePlan(location=location, tasks=tasks)
    return StatePlan(
        location=location,
        record=record,
        held=state_refs(manifest),
        names=state_operators(manifest),
        head_run=manifest.run_id if manifest.kind in BY_A_BATCH else "",
        tasks=tasks,
    )


def _pack(share: Mapping[str, ArtifactRef]) -> bytes:
    tables = Tables()
    rows = {path: encode_artifact(ref, tables) for path, ref in share.items()}
    return orjson.dumps([tables.objects(), tables.data_keys(), rows])


def _unpack(share: bytes) -> dict[str, ArtifactRef]:
    objects, data_keys, rows = orjson.loads(share)
    return {path: decode_artifact(row, objects, data_keys) for path, row in rows.items()}


@dataclass(frozen=True, slots=True)
class CoveredFile:
    """A state file as a task saw it, and where its bytes are."""

    path: str
    facts: FileFacts
    ref: ArtifactRef


@dataclass(frozen=True, slots=True)
class CollectedState:
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


def collect_state(
    plan: StatePlan, task: TaskFacts, target: UploadTarget, first_epoch: int
) -> CollectedState:
    """Collect a task's share. What Spark purges meanwhile is looked for again, then left to the driver."""
    opened = open_location(plan.location, task.run_id)
    for _ in range(_ATTEMPTS):
        try:
            captured, digests = _plan_share(plan, task, opened, first_epoch)
            known = plan.known(captured.all_files(), task.batch_id, task.run_id, digests)
            uploads = plan_uploads(captured, plan.held, known, digests, group_bytes=MOST_BYTES_WITH_ROWS)
            return _read(uploads, captured, opened.location, target)
        except FileGone:
            continue
    return CollectedState()


def _plan_share(
    plan: StatePlan, task: TaskFacts, opened: OpenLocation, first_epoch: int
) -> tuple[CapturePlan, dict[str, str]]:
    """What there is to collect, and the digests of the snapshots that were looked into for it."""
    prefixes = plan.prefixes(task.partition, task.run_id)
    listing = opened.location.listing(*prefixes)
    batch, logs, settled = task.batch_id, opened.logs, plan.settled(prefixes)
    operators = plan.operators(task.run_id)
    if operators is None:
        operators = logs.declared_operators(listing, batch)
    commits = commits_before(logs, listing, batch, settled)
    together = logs.written_together(listing, batch + 1)
    chains = [
        chain
        for owner in sorted(listing.state)
        if plan.task_of(owner.partition) == task.partition and owner.operator in operators
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
    except NotListed as error:
        raise FileGone(error.message, hint=error.hint) from error


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
    except NotListed:
        # Another task still writes this partition. The driver looks again when all are done.
        return ()


def _read(
    uploads: UploadPlan, captured: CapturePlan, location: CheckpointLocation, target: UploadTarget
) -> CollectedState:
    facts = {file.path: file.facts for file in captured.all_files()}
    large = [upload_group(location, target, group) for group in uploads.groups]
    group = read_group(location, target, uploads.here)
    refs = dict(uploads.reused) | dict(group.reused)
    for answer in large:
        refs |= dict(answer.refs)
    return CollectedState(
        tuple(CoveredFile(path, facts[path], ref) for path, ref in refs.items()),
        group,
        RequestCount.total([answer.requests for answer in large]),
    )
