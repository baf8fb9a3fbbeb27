"""Uploading one group of files: what a task does, or a thread of the driver. No Spark needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark_checkpoint.capture.location import CheckpointLocation
from pyspark_checkpoint.capture.uploads import UploadItem
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.format.keys import CheckpointId
from pyspark_checkpoint.format.manifest import RequestCount
from pyspark_checkpoint.format.pack import PackBounds
from pyspark_checkpoint.format.sealed import sha256_hex
from pyspark_checkpoint.history.parallel import run_bounded
from pyspark_checkpoint.history.stage import StagedItem, stage
from pyspark_checkpoint.store.base import ObjectStore

READ_CONCURRENCY = 8
NO_INLINE = PackBounds(max_inline_bytes=0)


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """Where artifacts go: the number they are staged for, and how they are encrypted."""

    store: ObjectStore
    number: int
    store_id: str = ""
    cipher: Cipher | None = None


@dataclass(frozen=True, slots=True)
class UploadedGroup:
    """Where each file of a group is now, by its path, and what that cost."""

    refs: tuple[tuple[str, ArtifactRef], ...]
    requests: RequestCount = field(default_factory=RequestCount)


def upload_group(
    location: CheckpointLocation,
    target: UploadTarget,
    group: Sequence[UploadItem],
    *,
    clock: Clock = SYSTEM_CLOCK,
    bounds: PackBounds = NO_INLINE,
) -> UploadedGroup:
    """Read a group's files, stage those whose bytes the store does not have, and say where all are.

    Each call stages under an attempt of its own, so that a task that runs twice overwrites nothing.
    """
    datas = run_bounded(
        lambda item: location.read(item.file.path, item.file.facts), list(group), READ_CONCURRENCY
    )
    refs: dict[str, ArtifactRef] = {}
    items: list[tuple[UploadItem, bytes]] = []
    for item, data in zip(group, datas, strict=True):
        if item.earlier is not None and _has_bytes(item.earlier, data):
            refs[item.file.path] = item.earlier
        else:
            items.append((item, data))
    staged = stage(
        target.store,
        CheckpointId(target.number, clock.uuid7()),
        [_staged_item(item, data) for item, data in items],
        store_id=target.store_id,
        cipher=target.cipher,
        bounds=bounds,
        clock=clock,
    )
    for (item, _), ref in zip(items, staged.refs, strict=True):
        refs[item.file.path] = ref
    return UploadedGroup(tuple(refs.items()), staged.requests)


def _has_bytes(ref: ArtifactRef, data: bytes) -> bool:
    return ref.data_key_id is None and ref.size_bytes == len(data) and ref.sha256 == sha256_hex(data)


def _staged_item(item: UploadItem, data: bytes) -> StagedItem:
    return StagedItem(
        data=data,
        is_delta=item.file.is_delta,
        epoch=item.file.epoch,
        operator=item.operator,
        partition=item.partition,
        name=item.name,
    )
