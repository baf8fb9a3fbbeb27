"""Whether and how a batch commits Spark's own state with its rows, decided before the tasks run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import orjson

from pyspark_checkpoint.capture.upload_plan import KnownFile
from pyspark_checkpoint.format.artifact import ArtifactRef, Tables, decode_artifact, encode_artifact
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.manifest_parts import StateRecord
from pyspark_checkpoint.spark_files.inventory import CapturedFile
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.logs import OperatorInfo
from pyspark_checkpoint.spark_files.names import StateFileKind, StoreId, parse_state_file, partition_of
from pyspark_checkpoint.spark_files.state_artifacts import state_operators, state_refs
from pyspark_checkpoint.spark_files.state_record import declared_operators

BY_A_BATCH = (ManifestKind.EPOCH, ManifestKind.REPLACEMENT)
"""The kinds of manifests that a batch makes."""
_NOTHING_OPENED: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    """What a task must know to take its share of the state. Travels to the tasks."""

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
            return ("state/",)
        partitions: dict[int, int] = {}
        for store in self.record.stores:
            partitions[store.operator] = max(partitions.get(store.operator, 0), store.partitions)
        described = () if self.operators(run_id) is not None else sorted(partitions)
        return (
            *(f"state/{operator}/_metadata/" for operator in described),
            *(
                f"state/{operator}/{partition}/"
                for operator, count in sorted(partitions.items())
                for partition in range(count)
                if self.is_for(task, partition)
            ),
        )

    def is_for(self, task: int, partition: int) -> bool:
        """Whether a task takes a partition of the state; what no task takes, the driver does."""
        return self.task_of(partition) == task

    def task_of(self, partition: int) -> int:
        """The task that takes a partition of the state, if there is one of that number."""
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
        batch: int,
        run_id: str,
        opened: Mapping[str, str] = _NOTHING_OPENED,
    ) -> dict[str, KnownFile]:
        """The files that are the head's without a look at their bytes.

        A name may be used again by a batch that runs again, so the version that ``batch`` makes is always
        looked at. The head's newest version is known by its time. Older ones cannot change while one run
        goes on, and are looked at once when a run begins; but for RocksDB's snapshots, which a second
        executor may upload again, with other files: ``opened`` has the digests of those that were looked
        into, and where the head's are encrypted, their times decide.
        """
        found: dict[str, KnownFile] = {}
        for file in files:
            ref = self.held.get(file.path)
            if ref is not None and self._is_known(file, ref, batch, run_id, opened.get(file.path)):
                found[file.path] = KnownFile(file.facts, ref)
        return found

    def _is_known(
        self, file: CapturedFile, ref: ArtifactRef, batch: int, run_id: str, digest: str | None
    ) -> bool:
        parsed = parse_state_file(file.path)
        if self.record is None or parsed is None or parsed.version > batch:
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
