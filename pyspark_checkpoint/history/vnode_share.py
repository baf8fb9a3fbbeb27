"""A static share of the vnodes: which partitions belong to it. Pure.

Partition p of an operator with P partitions owns the vnodes that are p modulo P. An instance that was
given some vnodes reads and writes the partitions that own at least one of them, and no others.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from pyspark_checkpoint.errors import FormatError, RefusedError, SettingsError
from pyspark_checkpoint.format.manifest import (
    MAX_VNODE_COUNT,
    CheckpointManifest,
    OperatorSnapshotEntry,
)
from pyspark_checkpoint.history.head import Head


def check_vnodes(vnodes: Set[int] | None, vnode_count: int) -> frozenset[int] | None:
    """Return the share as a frozen set if it makes sense; None means all."""
    if vnodes is None:
        return None
    if not vnodes or any(not 0 <= vnode < vnode_count for vnode in vnodes):
        raise SettingsError(
            f"vnodes must be some of 0 to {vnode_count - 1}", hint="leave them out to mean all"
        )
    return frozenset(vnodes)


def owns(partition: int, partition_count: int, vnodes: Set[int]) -> bool:
    """Whether a partition has at least one of ``vnodes``."""
    return any(vnode % partition_count == partition for vnode in vnodes)


def partition_count_of(manifest: CheckpointManifest, entry: OperatorSnapshotEntry) -> int:
    """How many partitions an operator has: as recorded, else by its highest partition."""
    highest = max((part.partition_id for part in entry.partitions), default=0)
    return max(manifest.partition_count, highest + 1)


def select_share(manifest: CheckpointManifest, vnodes: Set[int] | None) -> CheckpointManifest:
    """The manifest with the partitions of a share only; nothing else of it is then ever read."""
    if vnodes is None:
        return manifest
    operators = {}
    for name, entry in manifest.operators.items():
        count = partition_count_of(manifest, entry)
        mine = tuple(part for part in entry.partitions if owns(part.partition_id, count, vnodes))
        operators[name] = replace(entry, partitions=mine)
    return replace(manifest, operators=operators)


def check_share(manifest: CheckpointManifest, vnodes: Set[int] | None) -> CheckpointManifest:
    """Refuse a manifest with partitions outside of the share; return it saying what it covers."""
    if vnodes is None:
        return manifest
    if manifest.operators and manifest.partition_count < 1:
        raise RefusedError(
            "an instance with a share of the vnodes must say how many partitions there are",
            hint="set partition_count in the manifest",
        )
    for name, entry in manifest.operators.items():
        for part in entry.partitions:
            if not owns(part.partition_id, manifest.partition_count, vnodes):
                raise RefusedError(
                    f"partition {part.partition_id} of operator {name!r} is not in this instance's share",
                    hint="save the partitions that own one of the store's vnodes, and no others",
                )
    return replace(manifest, vnodes=tuple(sorted(vnodes)))


def check_others(head: Head | None, vnodes: Set[int] | None) -> None:
    """Refuse to commit a share on top of other shares: the newest checkpoint would no longer have them."""
    if head is None or vnodes is None:
        return
    mine = select_share(head.manifest, vnodes)
    for name, entry in head.manifest.operators.items():
        if len(entry.partitions) > len(mine.operators[name].partitions):
            raise RefusedError(
                f"checkpoint {head.number} has partitions of {name!r} with none of this instance's vnodes",
                hint="they would be lost from the newest checkpoint: give each share of the vnodes a URL",
            )


def missing_vnodes(manifest: CheckpointManifest, vnodes: Set[int] | None) -> frozenset[int]:
    """The vnodes of a share that a checkpoint does not cover."""
    if manifest.vnodes is None:
        return frozenset()
    if manifest.vnode_count > MAX_VNODE_COUNT:
        raise FormatError(
            f"vnode_count is {manifest.vnode_count}, outside 1 to {MAX_VNODE_COUNT}",
            hint="the manifest is damaged: run ckpt verify",
        )
    wanted = frozenset(range(manifest.vnode_count)) if vnodes is None else frozenset(vnodes)
    return wanted - frozenset(manifest.vnodes)
