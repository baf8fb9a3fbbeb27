"""Stores to begin with, laid out by the format alone, so that no code under test makes them."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_checkpoint.clock import uuid7_from
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    LATEST_KEY,
    CheckpointId,
    CheckpointPaths,
    manifest_key,
)
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    ManifestKind,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    QueryInfo,
)
from pyspark_checkpoint.format.manifest_codec import encode_manifest
from pyspark_checkpoint.format.records import Control, Pin, encode_control, encode_latest
from pyspark_checkpoint.testing.manual_clock import START_MS
from tests.protocol.simulation.truth import Truth

STORE_ID = str(uuid.UUID(int=uuid7_from(START_MS, 7)))
OPERATOR = "table"
QUERY = QueryInfo(id="query-1", name="orders")


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is stored, and what is true, when a scenario begins."""

    objects: Mapping[str, bytes]
    truth: Truth


def artifact_bytes(epoch: int, who: str) -> bytes:
    """The content of an epoch's delta: tiny, and different for everyone who makes it."""
    return f"rows of epoch {epoch} by {who}".encode()


def artifact_ref(path: str, data: bytes, epoch: int) -> ArtifactRef:
    """Refer to a whole object."""
    return ArtifactRef(path, len(data), sha256_hex(data), True, epoch)


def offsets_of(epoch: int) -> dict[str, ConnectorCheckpoint]:
    """Where the source stands after ``epoch``: the same for everyone who runs it."""
    return {"source": ConnectorCheckpoint(offsets={"json": str(epoch * 10)}, epoch=epoch)}


def content(refs: tuple[ArtifactRef, ...]) -> dict[str, OperatorSnapshotEntry]:
    """One operator with one partition with these deltas."""
    return {OPERATOR: OperatorSnapshotEntry((PartitionSnapshotEntry(0, refs),), "table")}


def deltas_of(manifest: CheckpointManifest) -> tuple[ArtifactRef, ...]:
    """The deltas of the one partition."""
    operator = manifest.operators.get(OPERATOR)
    return operator.partitions[0].artifacts if operator is not None else ()


@functools.cache
def beginning(
    head: int = 0,
    *,
    floor: int = 1,
    swept: int | None = None,
    latest: int | None = None,
    pins: tuple[tuple[str, int], ...] = (),
    depth: int = 2,
    runs: tuple[str, ...] = (),
    epochs: tuple[int, ...] = (),
    without_latest: bool = False,
) -> Beginning:
    """A history of ``head`` epochs, pruned up to ``floor`` except for ``pins``.

    Manifest n names the deltas of its last ``depth`` numbers. ``runs`` and ``epochs`` say who made each
    number, and of which epoch it is; run A and epoch = number where they end. Nothing below ``swept``
    is left but pins (``floor`` unless told otherwise).
    """
    history: list[CheckpointManifest] = []
    stored: list[bytes] = []
    objects: dict[str, bytes] = {}
    for number in range(1, head + 1):
        run = runs[number - 1] if number <= len(runs) else "A"
        epoch = epochs[number - 1] if number <= len(epochs) else number
        history.append(_manifest(number, run, epoch, history, stored, depth, objects))
        stored.append(encode_manifest(history[-1]))
    kept = {number for _, number in pins} | set(range(swept or floor, head + 1))
    needed = frozenset[str]().union(*(history[number - 1].paths() for number in kept))
    objects = {path: data for path, data in objects.items() if path in needed}
    objects |= {manifest_key(number): stored[number - 1] for number in kept}
    pinned = {name: Pin(number, sha256_hex(stored[number - 1])) for name, number in pins}
    objects[CONTROL_KEY] = encode_control(
        Control(STORE_ID, counter=len(pins) + floor, floor=floor, swept=swept or floor, pins=pinned)
    )
    if head and not without_latest:
        objects[LATEST_KEY] = encode_latest(latest or head)
    return Beginning(objects, Truth(tuple(stored), frozenset(pins)))


def _manifest(
    number: int,
    run: str,
    epoch: int,
    history: list[CheckpointManifest],
    stored: list[bytes],
    depth: int,
    objects: dict[str, bytes],
) -> CheckpointManifest:
    attempt = CheckpointId(number, str(uuid.UUID(int=uuid7_from(START_MS, number))))
    path, data = CheckpointPaths.delta(attempt, OPERATOR, 0), artifact_bytes(epoch, run)
    objects[path] = data
    parent = history[-1] if history else None
    inherited = deltas_of(parent)[-(depth - 1) :] if parent is not None and depth > 1 else ()
    raised = parent is not None and parent.run_id != run
    replaces = parent is not None and parent.epoch == epoch
    return CheckpointManifest(
        checkpoint_id=number,
        epoch=epoch,
        kind=ManifestKind.REPLACEMENT if replaces else ManifestKind.EPOCH,
        timestamp_ms=START_MS - 1000 * (100 - number),
        commit_nonce=f"{number:032x}",
        attempt=attempt.uuid,
        parent_id=number - 1,
        parent_sha256=sha256_hex(stored[-1]) if stored else "",
        generation=1 if parent is None else parent.generation + raised,
        run_id=run,
        query=QUERY,
        operators=content((*inherited, artifact_ref(path, data, epoch))),
        source_names=("source",),
        source_offsets=offsets_of(epoch),
    )
