"""What changed between two checkpoints of one history, from their manifests alone. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson

from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.fields import number_in
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    OperatorSnapshotEntry,
)
from pyspark_checkpoint.format.manifest_parts import SinkRecord, TableRecord, encode_table

T = TypeVar("T")


class Change(enum.Enum):
    """What happened to a part from the first checkpoint to the second."""

    ADDED = "added"
    CHANGED = "changed"
    DROPPED = "dropped"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Move:
    """One value that is another one now. ``distance`` is there if both are whole numbers."""

    name: str
    before: str | None
    after: str | None
    begins_at: int | None = None
    """Where a value begins that was not there before: Spark reads an added Kafka partition from 0."""

    @property
    def distance(self) -> int | None:
        """How far it went; negative if it went back."""
        before = self.begins_at if self.before is None else _whole(self.before)
        after = _whole(self.after)
        return None if before is None or after is None else after - before


@dataclass(frozen=True, slots=True)
class SourceChange:
    """How far a source moved: each of its offsets (a partition, a log position) that did."""

    name: str
    change: Change
    moves: tuple[Move, ...] = ()

    @property
    def distance(self) -> int | None:
        """All whole-numbered distances together; None if there is none."""
        found = [move.distance for move in self.moves if move.distance is not None]
        return sum(found) if found else None


@dataclass(frozen=True, slots=True)
class ArtifactCount:
    """How many artifacts, and their stored bytes."""

    count: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """What an operator's state, or a sink's table, consists of now and did not, and the other way round."""

    name: str
    kind: str
    change: Change
    partitions_before: int
    partitions_after: int
    partitions_changed: int
    bytes_before: int
    bytes_after: int
    added: ArtifactCount
    dropped: ArtifactCount
    kept: ArtifactCount


@dataclass(frozen=True, slots=True)
class ManifestDifference:
    """From checkpoint ``before`` to checkpoint ``after``."""

    before: int
    after: int
    epochs: tuple[int, int]
    batches: tuple[int | None, int | None]
    """Spark's numbers of the two batches; None for a batch job's."""
    timestamps_ms: tuple[int, int]
    sizes_bytes: tuple[int, int]
    sources: tuple[SourceChange, ...]
    operators: tuple[OperatorChange, ...]
    files: tuple[tuple[str, Change], ...]
    """Named files that are not equal in both: Spark's logs and schemas."""
    facts: tuple[Move, ...]
    """Everything else that is another one: watermark, sinks' epochs, run, settings, pipeline."""


def compare_manifests(before: CheckpointManifest, after: CheckpointManifest) -> ManifestDifference:
    """Compare two checkpoints; what only ``after`` has is added, what only ``before`` had is dropped."""
    return ManifestDifference(
        before=before.checkpoint_id,
        after=after.checkpoint_id,
        epochs=(before.epoch, after.epoch),
        batches=(before.batch_id, after.batch_id),
        timestamps_ms=(before.timestamp_ms, after.timestamp_ms),
        sizes_bytes=(before.total_size_bytes, after.total_size_bytes),
        sources=tuple(_sources(before, after)),
        operators=tuple(_operators(before.operators, after.operators)),
        files=tuple(_files(before.files, after.files)),
        facts=tuple(_facts(before, after)),
    )


def flatten_offsets(source: ConnectorCheckpoint | None) -> dict[str, str]:
    """A source's offsets by name. Spark writes JSON: each number or text in it gets a name of its own."""
    found: dict[str, str] = {}
    for name, text in (source.offsets if source is not None else {}).items():
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            value = text
        found |= dict(_leaves(name if name != "offset" or not isinstance(value, dict) else "", value))
    return found


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield name, value if isinstance(value, str) else orjson.dumps(value).decode()
        return
    for key, inner in items:
        yield from _leaves(f"{name}.{key}" if name else str(key), inner)


def _pairs(before: Mapping[str, T], after: Mapping[str, T]) -> Iterator[tuple[str, T | None, T | None]]:
    for name in sorted(before.keys() | after.keys()):
        yield name, before.get(name), after.get(name)


def _change(before: object | None, after: object | None, *, is_same: bool) -> Change:
    if before is None:
        return Change.ADDED
    if after is None:
        return Change.DROPPED
    return Change.SAME if is_same else Change.CHANGED


def _moves(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Move]:
    for name, then, now in _pairs(before, after):
        if then != now:
            yield Move(name, then, now)


def _sources(before: CheckpointManifest, after: CheckpointManifest) -> Iterator[SourceChange]:
    """Source by source, in the order of the later plan; what only the earlier one had comes last."""
    for name in dict.fromkeys((*_named_sources(after), *_named_sources(before))):
        then, now = before.source_offsets.get(name), after.source_offsets.get(name)
        moves = tuple(_offset_moves(flatten_offsets(then), flatten_offsets(now)))
        yield SourceChange(name, _change(then, now, is_same=not moves), moves)


def _named_sources(manifest: CheckpointManifest) -> tuple[str, ...]:
    return (*manifest.source_names, *manifest.source_offsets)


def _offset_moves(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Move]:
    """A partition that a source with partitions got since then begins at 0.

    Where a source itself is new, or had not begun, nobody knows where: that is up to ``startingOffsets``.
    """
    has_partitions = any(map(_is_partition, before))
    for move in _moves(before, after):
        is_added = has_partitions and move.before is None and _is_partition(move.name)
        yield replace(move, begins_at=0) if is_added else move


def _is_partition(name: str) -> bool:
    """Whether this names a partition of a topic, as Kafka's offsets do: ``topic.7``."""
    topic, _, partition = name.rpartition(".")
    return bool(topic) and partition.isdigit()


def _operators(
    before: Mapping[str, OperatorSnapshotEntry], after: Mapping[str, OperatorSnapshotEntry]
) -> Iterator[OperatorChange]:
    for name, then, now in _pairs(before, after):
        old, new = _by_identity(then), _by_identity(now)
        touched = {key[0] for key in old.keys() ^ new.keys()}
        yield OperatorChange(
            name=name,
            kind=(now or then or OperatorSnapshotEntry()).kind,
            change=_change(then, now, is_same=not touched),
            partitions_before=len(then.partitions) if then is not None else 0,
            partitions_after=len(now.partitions) if now is not None else 0,
            partitions_changed=len(touched),
            bytes_before=then.total_bytes if then is not None else 0,
            bytes_after=now.total_bytes if now is not None else 0,
            added=_count(new, new.keys() - old.keys()),
            dropped=_count(old, old.keys() - new.keys()),
            kept=_count(new, new.keys() & old.keys()),
        )


_Identity = tuple[int, str, str]


def _by_identity(entry: OperatorSnapshotEntry | None) -> dict[_Identity, int]:
    """Artifacts by partition, name and digest: the same bytes at another place are the same."""
    return {
        (part.partition_id, ref.name, ref.sha256): ref.size_bytes
        for part in (entry.partitions if entry is not None else ())
        for ref in part.artifacts
    }


def _count(sizes: Mapping[_Identity, int], keys: Iterable[_Identity]) -> ArtifactCount:
    wanted = [sizes[key] for key in keys]
    return ArtifactCount(len(wanted), sum(wanted))


def _files(before: Iterable[ArtifactRef], after: Iterable[ArtifactRef]) -> Iterator[tuple[str, Change]]:
    old, new = {ref.name: ref.sha256 for ref in before}, {ref.name: ref.sha256 for ref in after}
    for name, then, now in _pairs(old, new):
        change = _change(then, now, is_same=then == now)
        if change is not Change.SAME:
            yield name, change


def _facts(before: CheckpointManifest, after: CheckpointManifest) -> Iterator[Move]:
    yield from _moves(_plain_facts(before), _plain_facts(after))
    for prefix, then, now in (
        ("sink", before.sink_epochs, after.sink_epochs),
        ("sink", _sink_texts(before.sinks), _sink_texts(after.sinks)),
        ("table", _texts(before.table), _texts(after.table)),
        ("conf", before.query.conf, after.query.conf),
    ):
        for move in _moves(
            {name: str(value) for name, value in then.items()},
            {name: str(value) for name, value in now.items()},
        ):
            yield Move(f"{prefix} {move.name}", move.before, move.after)


def _plain_facts(manifest: CheckpointManifest) -> dict[str, str]:
    found = {
        "kind": manifest.kind.value,
        "generation": manifest.generation,
        "run": manifest.run_id,
        "batch watermark": manifest.batch_watermark_ms,
        "watermark": manifest.next_watermark_ms,
        "Spark": manifest.query.spark_version or None,
        "query": manifest.query.id or None,
        "location": manifest.query.checkpoint_location or None,
        "pipeline": manifest.pipeline_hash,
        "partitions": manifest.partition_count or None,
        "vnodes": manifest.vnode_count,
        "share": manifest.share,
        "assignment": manifest.assignment_version,
        "key": manifest.encryption_key_id,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _texts(table: TableRecord | None) -> dict[str, str]:
    """What is recorded of a table, without its lineage, which is another one for every epoch."""
    facts = {} if table is None else encode_table(replace(table, lineage=None))
    return {name: orjson.dumps(value).decode() for name, value in facts.items()}


def _sink_texts(sinks: Iterable[SinkRecord]) -> dict[str, str]:
    """Where the rows go, by the place of the sink; its batch is the checkpoint's."""
    return {
        str(at): " ".join(filter(None, (sink.kind, sink.target, sink.location, sink.native_version)))
        for at, sink in enumerate(sinks)
    }


def _whole(text: str | None) -> int | None:
    if text is None or number_in(text.removeprefix("-")) is None:
        return None
    return int(text)
