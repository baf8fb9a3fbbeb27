"""Uploading one group of files: what a task does, or a thread of the driver. No Spark needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark_checkpoint.capture.large_files import is_large, upload_large
from pyspark_checkpoint.capture.server_copy import COPY_BYTES, ServerCopier
from pyspark_checkpoint.capture.upload_plan import UploadItem
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths
from pyspark_checkpoint.format.manifest import RequestCount
from pyspark_checkpoint.format.pack import PackBounds
from pyspark_checkpoint.history.artifact_reader import ArtifactReader, WantedArtifact
from pyspark_checkpoint.history.parallel import run_bounded
from pyspark_checkpoint.history.staging import StagedItem, stage
from pyspark_checkpoint.spark_files.location import CheckpointLocation, FileGone
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
    copier: ServerCopier | None = None
    """Copies large files where one server has store and location."""


@dataclass(frozen=True, slots=True)
class UploadedGroup:
    """Where each file of a group is now, by its path, and what that cost."""

    refs: tuple[tuple[str, ArtifactRef], ...]
    requests: RequestCount = field(default_factory=RequestCount)


@dataclass(frozen=True, slots=True)
class ReadGroup:
    """A group's files as they were read: those that the store has already, and the bytes of the others."""

    reused: tuple[tuple[str, ArtifactRef], ...] = ()
    items: tuple[UploadItem, ...] = ()
    staged: tuple[StagedItem, ...] = ()


def read_group(
    location: CheckpointLocation, target: UploadTarget, group: Sequence[UploadItem]
) -> ReadGroup:
    """Read a group's files. One that is gone, or is another one now, is ``FileGone``."""
    datas = run_bounded(
        lambda item: location.read(item.file.path, item.file.facts), list(group), READ_CONCURRENCY
    )
    for item, data in zip(group, datas, strict=True):
        check_same(item, data)
    there = _find_stored(target, list(zip(group, datas, strict=True)))
    reused: list[tuple[str, ArtifactRef]] = []
    items: list[UploadItem] = []
    staged: list[StagedItem] = []
    for item, data in zip(group, datas, strict=True):
        if item.earlier is not None and item.file.path in there:
            reused.append((item.file.path, item.earlier))
        else:
            items.append(item)
            staged.append(staged_item(item, data))
    return ReadGroup(tuple(reused), tuple(items), tuple(staged))


def upload_group(
    location: CheckpointLocation,
    target: UploadTarget,
    group: Sequence[UploadItem],
    *,
    clock: Clock = SYSTEM_CLOCK,
    bounds: PackBounds = NO_INLINE,
    inline_used_bytes: int = 0,
) -> UploadedGroup:
    """Read a group's files, stage those whose bytes the store does not have, and say where all are.

    Large ones pass piece by piece, except into an encrypted store: a file is encrypted as a whole.
    Each call stages under an attempt of its own, so that a task that runs twice overwrites nothing.
    """
    copied = _copy_large(target, group, clock)
    left = [item for item in group if item.file.path not in copied]
    large = [item for item in left if is_large(item)] if target.cipher is None else []
    attempt = CheckpointId(target.number, clock.uuid7())
    sent: dict[str, ArtifactRef] = {}
    try:
        sent, cost = upload_large(location, target.store, attempt, large, clock)
        read = read_group(location, target, [item for item in left if item.file.path not in sent])
    except FileGone as error:
        error.uploaded += (*copied.items(), *sent.items())
        raise
    new = upload_bytes(
        target, read.items, read.staged, clock=clock, bounds=bounds, inline_used_bytes=inline_used_bytes
    )
    requests = RequestCount(
        new.requests.puts + cost.puts + len(copied),
        new.requests.gets + len(copied),
        new.requests.bytes + cost.bytes,
    )
    return UploadedGroup((*copied.items(), *sent.items(), *read.reused, *new.refs), requests)


def upload_bytes(
    target: UploadTarget,
    items: Sequence[UploadItem],
    staged: Sequence[StagedItem],
    *,
    clock: Clock = SYSTEM_CLOCK,
    bounds: PackBounds = NO_INLINE,
    inline_used_bytes: int = 0,
) -> UploadedGroup:
    """Stage files that were read, under an attempt of their own, and say where each is."""
    done = stage(
        target.store,
        CheckpointId(target.number, clock.uuid7()),
        staged,
        store_id=target.store_id,
        cipher=target.cipher,
        inline_used_bytes=inline_used_bytes,
        bounds=bounds,
        clock=clock,
    )
    refs = tuple((item.file.path, ref) for item, ref in zip(items, done.refs, strict=True))
    return UploadedGroup(refs, done.requests)


def _copy_large(target: UploadTarget, group: Sequence[UploadItem], clock: Clock) -> dict[str, ArtifactRef]:
    """Let the server copy what is large and new, and return what it did.

    Encrypted stores hold other bytes than the location.
    """
    copier = target.copier
    if copier is None or target.cipher is not None:
        return {}
    large = [item for item in group if item.earlier is None and item.file.facts.size_bytes >= COPY_BYTES]
    attempt = CheckpointId(target.number, clock.uuid7())

    def copy(numbered: tuple[int, UploadItem]) -> tuple[str, ArtifactRef] | None:
        index, item = numbered
        path = CheckpointPaths.file(attempt, index)
        made = copier.copy(item.file.path, path)
        if made is None:
            return None
        if made.size_bytes != item.file.facts.size_bytes or item.sha256 not in ("", made.sha256):
            raise FileGone(f"{item.file.path} was written again")
        file = item.file
        return file.path, ArtifactRef(
            path, made.size_bytes, made.sha256, file.is_delta, file.epoch, name=item.name
        )

    done = run_bounded(copy, list(enumerate(large)), READ_CONCURRENCY)
    return dict(copied for copied in done if copied is not None)


def _find_stored(target: UploadTarget, read: Sequence[tuple[UploadItem, bytes]]) -> set[str]:
    """Of the files that were read, those whose bytes the store has already, by their paths."""
    reader = ArtifactReader(target.store, store_id=target.store_id, cipher=target.cipher)
    wanted = [
        (item.file.path, WantedArtifact(item.earlier, item.operator, item.partition), data)
        for item, data in read
        if item.earlier is not None
    ]
    same = run_bounded(lambda one: reader.has_bytes(one[1], one[2]), wanted, READ_CONCURRENCY)
    return {path for (path, _, _), is_same in zip(wanted, same, strict=True) if is_same}


def check_same(item: UploadItem, data: bytes) -> None:
    """Refuse a file that is not the one which the plan was made with."""
    is_other = bool(item.sha256) and sha256_hex(data) != item.sha256
    if is_other or len(data) != item.file.facts.size_bytes:
        raise FileGone(f"{item.file.path} was written again")


def staged_item(item: UploadItem, data: bytes) -> StagedItem:
    """A file's bytes as they are staged."""
    return StagedItem(
        data=data,
        is_delta=item.file.is_delta,
        epoch=item.file.epoch,
        operator=item.operator,
        partition=item.partition,
        name=item.name,
    )
