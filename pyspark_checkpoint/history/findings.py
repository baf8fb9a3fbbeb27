"""What is wrong with a store, said of one object at a time; what can be seen without its bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark_checkpoint.errors import CheckpointError, IntegrityError
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    LATEST_KEY,
    manifest_key,
    parse_attempt_key,
    parse_data_key_key,
    parse_manifest_key,
    parse_seal_key,
    parse_status_key,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.spark_files.consistency import check_fit
from pyspark_checkpoint.store.probe import PROBE_PREFIX


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be: the object, what is wrong, and which checkpoint needs it."""

    object: str
    problem: str
    checkpoint_id: int | None = None
    expected: str | None = None
    actual: str | None = None

    def __str__(self) -> str:
        needed = f" (checkpoint {self.checkpoint_id})" if self.checkpoint_id is not None else ""
        return f"{self.object}: {self.problem}{needed}"


@dataclass(frozen=True, slots=True)
class Link:
    """A manifest's place in the chain: its own digest, and what it says of its parent."""

    number: int
    sha256: str
    parent_sha256: str
    parent_id: int
    generation: int
    epoch: int
    timestamp_ms: int
    kind: ManifestKind
    run_id: str
    deleted_sha256: str | None = None

    @property
    def chain_sha256(self) -> str:
        """The digest that the next manifest must name; a tombstone answers for what it replaced."""
        return self.deleted_sha256 if self.deleted_sha256 is not None else self.sha256


def link_of(manifest: CheckpointManifest, sha256: str) -> Link:
    """The place of a manifest in the chain."""
    return Link(
        number=manifest.checkpoint_id,
        sha256=sha256,
        parent_sha256=manifest.parent_sha256,
        parent_id=manifest.parent_id,
        generation=manifest.generation,
        epoch=manifest.epoch,
        timestamp_ms=manifest.timestamp_ms,
        kind=manifest.kind,
        run_id=manifest.run_id,
        deleted_sha256=manifest.deleted_sha256,
    )


def finding_of(error: CheckpointError, obj: str, checkpoint_id: int | None = None) -> Finding:
    """A finding from what reading an object raised."""
    if isinstance(error, IntegrityError):
        return Finding(obj, "has another digest than recorded", checkpoint_id, error.expected, error.actual)
    return Finding(obj, error.message, checkpoint_id)


def check_link(parent: Link, child: Link) -> Iterator[Finding]:
    """What does not fit between a manifest and the next one."""
    key, number = manifest_key(child.number), child.number
    if child.parent_sha256 != parent.chain_sha256:
        yield Finding(
            key,
            "does not follow its parent",
            number,
            expected=parent.chain_sha256,
            actual=child.parent_sha256,
        )
    if child.parent_id != parent.number:
        yield Finding(key, f"says that its parent is {child.parent_id}", number)
    raised = child.generation - parent.generation
    over_damage = child.kind is ManifestKind.ROLLBACK and raised > 0
    if raised != (child.run_id != parent.run_id) and not over_damage:
        yield Finding(key, f"has generation {child.generation} after {parent.generation}", number)
    if child.timestamp_ms < parent.timestamp_ms:
        yield Finding(key, "is older than its parent", number)
    if child.epoch < parent.epoch and child.kind not in (ManifestKind.ROLLBACK, ManifestKind.TOMBSTONE):
        yield Finding(key, f"has epoch {child.epoch} after {parent.epoch} and is no rollback", number)


def check_manifest(manifest: CheckpointManifest) -> Iterator[Finding]:
    """What does not fit within one manifest."""
    key, number = manifest_key(manifest.checkpoint_id), manifest.checkpoint_id
    if manifest.kind is ManifestKind.TOMBSTONE:
        return
    for issue in manifest.validate(manifest.vnode_count):
        yield Finding(key, f"{issue.field} {issue.message}", number)
    for problem in check_fit(manifest):
        yield Finding(key, problem, number)
    for path in manifest.paths():
        parsed = parse_attempt_key(path)
        if parsed is None or parsed[0].number > number:
            yield Finding(key, f"names {path}, which was staged for a later checkpoint", number)


def is_known_name(key: str) -> bool:
    """Whether this package writes objects with such a name."""
    return (
        key in (CONTROL_KEY, LATEST_KEY)
        or key.startswith(PROBE_PREFIX)
        or parse_manifest_key(key) is not None
        or parse_seal_key(key) is not None
        or parse_status_key(key) is not None
        or parse_attempt_key(key) is not None
        or parse_data_key_key(key) is not None
    )


def check_names(keys: Mapping[str, int], control: Control, head_number: int) -> Iterator[Finding]:
    """Objects that do not belong: strange names, and manifests beyond the head."""
    for key in keys:
        number = parse_manifest_key(key) or parse_seal_key(key)
        if not is_known_name(key):
            yield Finding(key, "is no object of this store")
        elif number is not None and number > head_number:
            yield Finding(key, f"lies beyond a gap: the newest checkpoint is {head_number}", number)
    if control.floor > max(head_number, 1):
        yield Finding(CONTROL_KEY, f"has floor {control.floor} above the newest checkpoint {head_number}")
