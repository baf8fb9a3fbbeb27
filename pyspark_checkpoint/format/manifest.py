"""The manifest: the value whose creation is the commit, and everything that a checkpoint knows.

A manifest names all that is needed to read its checkpoint, and to replace its own epoch; no other
object is needed to interpret it. ``manifest_codec`` writes it down.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import FORMAT_VERSION
from pyspark_checkpoint.format.manifest_parts import PlannedBatch, SinkRecord, StateRecord, TableRecord
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.format.settled import ListRef

DEFAULT_VNODE_COUNT = 256
MAX_VNODE_COUNT = 65_535
SIDECAR_NAME = "state.bin"
"""The name of the state sidecar among a manifest's files."""


class ManifestKind(enum.Enum):
    """Why a manifest was written."""

    EPOCH = "epoch"
    """A new epoch."""
    REPLACEMENT = "replacement"
    """The head's epoch again, because Spark ran the batch again."""
    ROLLBACK = "rollback"
    """The content of an earlier checkpoint, on purpose."""
    CLAIM = "claim"
    """What the parent names, by a new run: from here on the old one is fenced."""
    TOMBSTONE = "tombstone"
    """A deleted checkpoint, which keeps its number and its place in the chain."""
    MERGE = "merge"
    """What the newest checkpoints of all shares of a table name, as one checkpoint of the whole."""


@dataclass(frozen=True, slots=True)
class ConnectorCheckpoint:
    """Where a source stands: its offsets by name, and notes about it.

    A source of Spark has one offset, a JSON text named ``offset``; or none if it has not begun.
    """

    offsets: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionSnapshotEntry:
    """A partition's state: at most one snapshot and the deltas on top of it, in the order to apply."""

    partition_id: int
    artifacts: tuple[ArtifactRef, ...]

    @property
    def size_bytes(self) -> int:
        """Stored bytes of all artifacts."""
        return sum(ref.size_bytes for ref in self.artifacts)


@dataclass(frozen=True, slots=True)
class OperatorSnapshotEntry:
    """A stateful operator, or the table that a sink keeps. ``kind`` says which and in what format.

    ``settled`` are lists of parts that come before those of ``partitions``, the highest level first.
    """

    partitions: tuple[PartitionSnapshotEntry, ...] = ()
    kind: str = "state"
    settled: tuple[ListRef, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Stored bytes of all partitions, and of what is settled."""
        return sum(part.size_bytes for part in self.partitions) + sum(
            ref.total_bytes for ref in self.settled
        )


OperatorCheckpoint = OperatorSnapshotEntry
"""The seed's other name for an operator's entry: inline or external is said by each artifact."""


@dataclass(frozen=True, slots=True)
class QueryInfo:
    """The streaming query that a checkpoint is of."""

    id: str = ""
    name: str = ""
    checkpoint_location: str = ""
    spark_version: str = ""
    app_name: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestCount:
    """What the commit cost up to the manifest itself."""

    puts: int = 0
    gets: int = 0
    bytes: int = 0

    @staticmethod
    def total(counts: Sequence[RequestCount]) -> RequestCount:
        """What several things cost together."""
        return RequestCount(
            sum(one.puts for one in counts),
            sum(one.gets for one in counts),
            sum(one.bytes for one in counts),
        )


@dataclass(frozen=True, slots=True)
class ManifestValidationError:
    """One thing in a manifest that does not fit: the field and what is wrong with it."""

    field: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """One checkpoint. Everything but the content is stamped by the commit: see ``history.publish``."""

    checkpoint_id: int
    epoch: int
    batch_id: int | None = None
    """Spark's number of the batch, which is not the epoch of a table that a query has taken over. None
    where no streaming query has made the checkpoint."""
    version: int = FORMAT_VERSION
    kind: ManifestKind = ManifestKind.EPOCH
    timestamp_ms: int = 0
    commit_nonce: str = ""
    attempt: str = ""
    """The uuid of the attempt that staged it (``CheckpointId.uuid``)."""
    parent_id: int = 0
    parent_sha256: str = ""
    generation: int = 0
    run_id: str = ""
    earlier_runs: tuple[str, ...] = ()
    """The runs that were taken over, newest first, so that one of them that remembers nothing is known."""
    rollbacks: tuple[tuple[int, int], ...] = ()
    """The newest rollbacks of the history, oldest first: the checkpoint that is one, and to which batch."""
    instance_id: str = ""
    query: QueryInfo = field(default_factory=QueryInfo)
    operators: Mapping[str, OperatorSnapshotEntry] = field(default_factory=dict)
    files: tuple[ArtifactRef, ...] = ()
    """Named artifacts that belong to no partition: Spark's logs, schemas, the state sidecar."""
    source_offsets: Mapping[str, ConnectorCheckpoint] = field(default_factory=dict)
    table_offsets: Mapping[str, ConnectorCheckpoint] = field(default_factory=dict)
    table_store_checkpoint_path: str | None = None
    source_names: tuple[str, ...] = ()
    """In the order of the query's plan, each once."""
    source_watermarks: Mapping[str, int] = field(default_factory=dict)
    batch_watermark_ms: int | None = None
    """The watermark that the batch used; None if that is not known."""
    next_watermark_ms: int | None = None
    """The watermark after the batch, from ``commits/N``; None if that was not written yet."""
    sink_names: tuple[str, ...] = ()
    sink_epochs: Mapping[str, int] = field(default_factory=dict)
    sink_commit_statuses: Mapping[str, SinkCommitStatus] = field(default_factory=dict)
    """Not part of the stored bytes: filled from the status records when a manifest is loaded."""
    sinks: tuple[SinkRecord, ...] = ()
    """Where the rows of the batch went, in the order of the query's sinks."""
    pipeline_hash: int | None = None
    vnode_count: int = DEFAULT_VNODE_COUNT
    vnodes: tuple[int, ...] | None = None
    """The vnodes that this checkpoint covers; None means all."""
    partition_count: int = 0
    table: TableRecord | None = None
    """The table whose rows the checkpoint has; None if it has none."""
    state: StateRecord | None = None
    """What is recorded of Spark's state where it is committed with the rows of a table; else None."""
    planned: PlannedBatch | None = None
    """The batch after this one, if it was planned already; its files are among ``files``."""
    share: str | None = None
    """The share of a table that this history is of; None for a whole one."""
    assignment_version: int | None = None
    """The version of the shares' assignment that the writer knew."""
    encryption_key_id: str | None = None
    state_checksum: str | None = None
    rollback_of: int | None = None
    """For a rollback: the checkpoint whose content this is."""
    deleted_sha256: str | None = None
    """For a tombstone: the digest of the manifest that was here."""
    requests: RequestCount = field(default_factory=RequestCount)

    @staticmethod
    def new(checkpoint_id: int, epoch: int) -> CheckpointManifest:
        """An empty manifest with the default vnode count."""
        return CheckpointManifest(checkpoint_id=checkpoint_id, epoch=epoch)

    @staticmethod
    def new_with_vnode_count(checkpoint_id: int, epoch: int, vnode_count: int) -> CheckpointManifest:
        """An empty manifest with an explicit vnode count."""
        return CheckpointManifest(checkpoint_id=checkpoint_id, epoch=epoch, vnode_count=vnode_count)

    @property
    def is_start(self) -> bool:
        """Whether it is of a query before its first batch, of which it has the plan."""
        return self.batch_id is None and self.planned is not None

    @property
    def operator_states(self) -> Mapping[str, OperatorSnapshotEntry]:
        """The seed's name for ``operators``."""
        return self.operators

    @property
    def watermark(self) -> int | None:
        """The seed's name for the newest watermark that is known: after the batch, else in it."""
        return self.batch_watermark_ms if self.next_watermark_ms is None else self.next_watermark_ms

    @property
    def total_size_bytes(self) -> int:
        """Stored bytes of every artifact that this checkpoint names, shared ones included."""
        below = sum(ref.below_bytes for ref in self.settled())
        return sum(ref.size_bytes for ref in self.artifacts()) + below

    @property
    def inline_bytes(self) -> int:
        """How much of the manifest itself are artifacts, before base64."""
        return sum(ref.size_bytes for ref in self.artifacts() if ref.inline is not None)

    def artifacts(self) -> Iterator[ArtifactRef]:
        """Every artifact that this manifest names itself: its lists, and not what they name."""
        for operator in self.operators.values():
            for part in operator.partitions:
                yield from part.artifacts
        for ref in self.settled():
            yield ref.artifact()
        yield from self.files

    def settled(self) -> Iterator[ListRef]:
        """The lists of settled parts; ``history.settle`` reads what they name."""
        for operator in self.operators.values():
            yield from operator.settled

    def paths(self) -> frozenset[str]:
        """The objects that this manifest names itself."""
        return frozenset(ref.path for ref in self.artifacts() if ref.path is not None)

    def with_statuses(self, statuses: Mapping[str, SinkCommitStatus]) -> CheckpointManifest:
        """The same manifest with what the status records say."""
        return replace(self, sink_commit_statuses=dict(statuses))

    def validate(self, expected_vnode_count: int = DEFAULT_VNODE_COUNT) -> list[ManifestValidationError]:
        """What does not fit, empty when all is well. Restoring with another vnode count is not safe."""
        return [ManifestValidationError(*found) for found in _findings(self, expected_vnode_count)]


def _findings(manifest: CheckpointManifest, expected_vnode_count: int) -> Iterator[tuple[str, str]]:
    if manifest.version != FORMAT_VERSION:
        yield "version", f"is {manifest.version}, not {FORMAT_VERSION}"
    if manifest.checkpoint_id < 1:
        yield "checkpoint_id", f"is {manifest.checkpoint_id}; numbers begin at 1"
    if manifest.epoch < 0:
        yield "epoch", f"is {manifest.epoch}"
    if manifest.batch_id is not None and manifest.batch_id < 0:
        yield "batch_id", f"is {manifest.batch_id}"
    if manifest.timestamp_ms <= 0:
        yield "timestamp_ms", f"is {manifest.timestamp_ms}"
    if manifest.vnode_count != expected_vnode_count:
        yield "vnode_count", f"is {manifest.vnode_count}, the runtime has {expected_vnode_count}"
    elif not 1 <= manifest.vnode_count <= MAX_VNODE_COUNT:
        yield "vnode_count", f"is {manifest.vnode_count}, outside 1 to {MAX_VNODE_COUNT}"
    if manifest.vnodes is not None and any(not 0 <= v < manifest.vnode_count for v in manifest.vnodes):
        yield "vnodes", "names vnodes that do not exist"
    yield from _name_findings(manifest)
    yield from _partition_findings(manifest)
    yield from _batch_findings(manifest)
    sidecars = [ref.sha256 for ref in manifest.files if ref.name == SIDECAR_NAME]
    expected = [] if manifest.state_checksum is None else [manifest.state_checksum]
    if sidecars != expected:
        yield "state_checksum", "is not the digest of the one state sidecar"


def _name_findings(manifest: CheckpointManifest) -> Iterator[tuple[str, str]]:
    for sink in manifest.sink_epochs:
        if sink not in manifest.sink_names:
            yield "sink_epochs", f"has sink {sink!r}, which sink_names lacks"
    for source in manifest.source_offsets:
        if source not in manifest.source_names:
            yield "source_offsets", f"has source {source!r}, which source_names lacks"
    if len(set(manifest.source_names)) != len(manifest.source_names):
        yield "source_names", "has a name twice"
    if list(manifest.sink_names) != sorted(set(manifest.sink_names)):
        yield "sink_names", "is not sorted, or has a name twice"


def _partition_findings(manifest: CheckpointManifest) -> Iterator[tuple[str, str]]:
    for name, operator in manifest.operators.items():
        numbers = [part.partition_id for part in operator.partitions]
        if len(set(numbers)) != len(numbers):
            yield f"operators.{name}", "has a partition twice"
        for part in operator.partitions:
            if any(ref.epoch > manifest.epoch for ref in part.artifacts):
                yield f"operators.{name}", f"partition {part.partition_id} has an artifact of a later epoch"
        if any(ref.epoch > manifest.epoch for ref in operator.settled):
            yield f"operators.{name}", "has settled parts of a later epoch"
        if len({ref.path for ref in operator.settled}) != len(operator.settled):
            yield f"operators.{name}", "has a list of settled parts twice"


def _batch_findings(manifest: CheckpointManifest) -> Iterator[tuple[str, str]]:
    if manifest.state is not None and manifest.state.batch_id != manifest.batch_id:
        yield "state", f"is of batch {manifest.state.batch_id}, the checkpoint of batch {manifest.batch_id}"
    planned = manifest.planned
    if planned is None:
        return
    if planned.batch_id != (0 if manifest.batch_id is None else manifest.batch_id + 1):
        yield "planned", f"is batch {planned.batch_id}, the checkpoint of batch {manifest.batch_id}"
    absent = set(planned.files) - {ref.name for ref in manifest.files}
    if absent:
        yield "planned", f"names {min(absent)!r}, which is not among the files"
