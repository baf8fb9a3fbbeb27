"""Small histories for tests: a memory store that counts calls, runs that commit, and looking at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths, manifest_key
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    QueryInfo,
)
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.history.control import read_control
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.retention import PruneResult, RetentionPolicy, prune_history
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.faulty_store import Fault, FaultPlan, FaultyStore, StoreCall, no_faults
from pyspark_checkpoint.testing.manual_clock import ManualClock

OPERATOR = "agg"


@dataclass
class History:
    """A store under test, its plain inside, and a clock that all its actors share."""

    inner: MemoryStore = None  # type: ignore[assignment]
    clock: ManualClock = field(default_factory=ManualClock)
    plan: FaultPlan = no_faults

    def __post_init__(self) -> None:
        self.inner = self.inner or MemoryStore(clock=self.clock)
        self.store = FaultyStore(self.inner, self._planned, clock=self.clock)

    def _planned(self, call: StoreCall) -> Fault | None:
        return self.plan(call)

    def run(self, run_id: str, **settings: object) -> Run:
        settings.setdefault("query", QueryInfo(id="q", name="orders"))
        return Run(self.store, run_id, clock=self.clock, **settings)  # type: ignore[arg-type]

    def keys(self, prefix: str = "") -> list[str]:
        return [info.key for info in self.inner.list(prefix)]

    def numbers(self) -> list[int]:
        return [int(key[19:29]) for key in self.keys("manifests/") if key == manifest_key(int(key[19:29]))]

    def calls(self, action: Callable[[], object]) -> list[tuple[str, str]]:
        self.store.calls.clear()
        action()
        return [(call.verb, call.key) for call in self.store.calls]

    def control(self) -> Control:
        return read_control(self.inner).control

    def head(self) -> CheckpointManifest:
        head = find_head(self.inner)
        assert head is not None
        return head.manifest

    def prune(self, keep: int) -> PruneResult:
        head = find_head(self.store)
        assert head is not None
        return prune_history(self.store, head, RetentionPolicy(keep), self.clock)

    def flip(self, key: str, at: int = 40) -> None:
        data = bytearray(self.inner.get(key))
        data[at] ^= 1
        self.inner.put(key, bytes(data))

    def missing(self, manifest: CheckpointManifest) -> set[str]:
        """What a checkpoint names and the store has not."""
        return set(manifest.paths()) - set(self.keys("checkpoints/"))


def stage_one(run: Run, attempt: CheckpointId, epoch: int, text: str) -> ArtifactRef:
    data = text.encode()
    path = CheckpointPaths.delta(attempt, OPERATOR, 0)
    run.store.put(path, data, if_absent=True)
    return ArtifactRef(path, len(data), sha256_hex(data), True, epoch)


def draft_of(epoch: int, refs: tuple[ArtifactRef, ...], **fields: object) -> CheckpointManifest:
    settings: dict[str, object] = {
        "source_names": ("kafka",),
        "source_offsets": {"kafka": ConnectorCheckpoint({"0": str(epoch * 10)})},
        **fields,
    }
    operators = {OPERATOR: OperatorSnapshotEntry((PartitionSnapshotEntry(0, refs),))}
    return CheckpointManifest(checkpoint_id=0, epoch=epoch, operators=operators, **settings)  # type: ignore[arg-type]


def carried(run: Run, epoch: int, depth: int) -> tuple[ArtifactRef, ...]:
    """The newest deltas of earlier epochs that the head names; the next checkpoint names them again."""
    if run.head is None or OPERATOR not in run.head.manifest.operators:
        return ()
    refs = run.head.manifest.operators[OPERATOR].partitions[0].artifacts
    earlier = tuple(ref for ref in refs if ref.epoch < epoch)
    return earlier[-depth:] if depth else ()


def commit(
    run: Run, epoch: int, text: str | None = None, *, depth: int = 1, **fields: object
) -> CheckpointManifest:
    """Stage one delta and publish it with the ``depth`` deltas before it."""
    attempt = run.attempt()
    ref = stage_one(run, attempt, epoch, text if text is not None else f"rows of epoch {epoch}")
    return run.publish(draft_of(epoch, (*carried(run, epoch, depth), ref), **fields), attempt)


def history_of(epochs: int, *, run_id: str = "run-a", depth: int = 1) -> tuple[History, Run]:
    """A store in which one run has committed epochs 0 to ``epochs - 1`` as checkpoints 1 to ``epochs``."""
    history = History()
    run = history.run(run_id)
    run.claim()
    for epoch in range(epochs):
        commit(run, epoch, depth=depth)
    return history, run
