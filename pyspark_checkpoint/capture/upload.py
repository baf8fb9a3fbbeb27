"""Uploading one group of files: what a task does, or a thread of the driver. Needs no Spark.

A file goes to the store in one of three ways:

1. Small ones are read, and staged together in packs: at most a group of them is in memory.
2. Large ones pass piece by piece through a temporary file. What is sent, in parts and once more after a
   failure, is then what the digest was computed of, whatever becomes of the original.
3. Large ones that store and location keep in one bucket are copied by the server (``ServerCopier``).

Files whose bytes an earlier checkpoint has are not sent: that artifact is referenced. A file that is not
the one that the plan was made with is ``FileGone``: the caller lists the location once more.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from pyspark_checkpoint.capture.upload_plan import UploadItem
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import Conflict, Denied, NotFound, RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths
from pyspark_checkpoint.format.manifest import RequestCount
from pyspark_checkpoint.format.pack import PackBounds
from pyspark_checkpoint.history.artifact_reader import ArtifactReader, WantedArtifact
from pyspark_checkpoint.history.staging import StagedItem, put_artifact_file, stage
from pyspark_checkpoint.spark_files.location import CheckpointLocation, FileGone, LocationSpec
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.open import open_object_store, parse_store_settings
from pyspark_checkpoint.store.parallel import run_bounded
from pyspark_checkpoint.store.settings import BackendSettings, S3Settings
from pyspark_checkpoint.store.url import parse_store_url

READ_CONCURRENCY = 8
NO_INLINE = PackBounds(max_inline_bytes=0)
LOG_BOUNDS = PackBounds(max_inline_bytes=16 * 1024)
"""Spark's logs travel inside the manifest, so that they cost no request; the total stays bounded."""
LARGE_BYTES = 16 * 1024 * 1024
"""From here on a file passes through a temporary one."""
COPY_BYTES = 8 * 1024 * 1024
"""From here on a copy by the server is worth its requests."""
NO_ROOM = "a large file cannot be kept in a temporary one"
NO_ROOM_HINT = "set TMPDIR, of driver and executors, to a directory with room for the largest state files"
GONE_HINT = "the next capture lists it once more; let Spark keep more batches if this repeats"
_PIECE_BYTES = 4 * 1024 * 1024
"""A request each where the location is an object store."""
_LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"
"""Where Spark names the disks of its Python workers."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """Where artifacts go: the checkpoint that they are staged for, and how they are encrypted."""

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
    large = [item for item in left if item.file.facts.size_bytes >= LARGE_BYTES]
    sent: dict[str, ArtifactRef] = {}
    try:
        cost = RequestCount()
        if target.cipher is None:
            sent, cost = _upload_large(location, target, large, clock)
        read = read_group(location, target, [item for item in left if item.file.path not in sent])
    except FileGone as error:
        error.uploaded += (*copied.items(), *sent.items())
        raise
    new = upload_bytes(
        target, read.items, read.staged, clock=clock, bounds=bounds, inline_used_bytes=inline_used_bytes
    )
    requests = RequestCount.total([new.requests, cost, RequestCount(len(copied), len(copied))])
    return UploadedGroup((*copied.items(), *sent.items(), *read.reused, *new.refs), requests)


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


def check_same(item: UploadItem, data: bytes) -> None:
    """Refuse a file that is not the one which the plan was made with."""
    _check_unchanged(item, len(data), sha256_hex(data) if item.sha256 else "")


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


def _check_unchanged(item: UploadItem, size_bytes: int, sha256: str) -> None:
    if size_bytes != item.file.facts.size_bytes or item.sha256 not in ("", sha256):
        raise FileGone(f"{item.file.path} has changed since it was listed", hint=GONE_HINT)


def _file_ref(item: UploadItem, path: str, sha256: str) -> ArtifactRef:
    """A file that is an object of its own."""
    file = item.file
    return ArtifactRef(path, file.facts.size_bytes, sha256, file.is_delta, file.epoch, name=item.name)


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


# --- large files, piece by piece -----------------------------------------------------------------


def _upload_large(
    location: CheckpointLocation, target: UploadTarget, items: Sequence[UploadItem], clock: Clock
) -> tuple[dict[str, ArtifactRef], RequestCount]:
    """Store files as they are, one after the other, unless the store has their bytes; say where each is."""
    attempt = CheckpointId(target.number, clock.uuid7())
    refs: dict[str, ArtifactRef] = {}
    puts = size_bytes = 0
    for index, item in enumerate(items):
        path, earlier = CheckpointPaths.file(attempt, index), item.earlier
        try:
            with _temporary() as file:
                sha256 = _fetch(location, item, file)
                if earlier is not None and earlier.data_key_id is None and earlier.sha256 == sha256:
                    refs[item.file.path] = earlier
                    continue
                put_artifact_file(target.store, path, file, sha256, clock)
        except FileGone as error:
            error.uploaded += tuple(refs.items())
            raise
        except OSError as error:  # of the temporary file: stores have errors of their own
            text = f"{NO_ROOM}: {error.strerror or type(error).__name__}"
            raise RefusedError(text, hint=NO_ROOM_HINT) from None
        puts, size_bytes = puts + 1, size_bytes + item.file.facts.size_bytes
        refs[item.file.path] = _file_ref(item, path, sha256)
    return refs, RequestCount(puts, 0, size_bytes)


def _fetch(location: CheckpointLocation, item: UploadItem, file: IO[bytes]) -> str:
    """Bring a file of the location here, and return its digest. One that is another now is ``FileGone``."""
    digest, size_bytes, path = hashlib.sha256(), 0, item.file.path
    try:
        for piece in location.store.stream(path, chunk_bytes=_PIECE_BYTES):
            digest.update(piece)
            size_bytes += len(piece)
            file.write(piece)
    except NotFound:
        raise FileGone(f"{path} is gone from the checkpoint location", hint=GONE_HINT) from None
    except Conflict:
        raise FileGone(f"{path} has changed since it was listed", hint=GONE_HINT) from None
    _check_unchanged(item, size_bytes, digest.hexdigest())
    return digest.hexdigest()


def _temporary() -> IO[bytes]:
    """A file without a name: where ``TMPDIR`` says, else on Spark's own disk, or the system's."""
    local = os.environ.get(_LOCAL_DIRECTORIES, "").partition(",")[0]
    is_usable = "TMPDIR" not in os.environ and os.access(local, os.W_OK)
    return tempfile.TemporaryFile(prefix="ckpt-", dir=local if is_usable else None)


# --- large files, copied by the server -----------------------------------------------------------

_SERVICES = ("s3", "gs", "az", "memory")
_SAME = ("bucket", "container", "name", "endpoint", "account_name", "project", "access_point")
_DENIED: set[tuple[str, str]] = set()
"""Buckets and prefixes in them that this process may not copy from: tasks come and go, and ask once."""
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class ServerCopier:
    """Copies from a location to a store that are in one bucket: nothing is uploaded.

    The copy is ours alone and never changes, so its digest is computed from it afterwards, by reading it
    once: what is recorded is the SHA-256 of the stored bytes, as everywhere. Saved is the upload, not the
    read. The server copies with the store's credentials, which need not be those that Spark reads the
    location with. Where they may not read it, files are uploaded as from anywhere else.
    """

    bucket: ObjectStore
    location_prefix: str
    store_prefix: str

    def copy(self, path: str, artifact_path: str) -> tuple[int, str] | None:
        """Copy a file of the location to a name that only the caller uses; the copy's size and digest.

        None if the store's credentials may not copy it: the caller uploads it.
        """
        if (self.bucket.url, self.location_prefix) in _DENIED:
            return None
        target = _join(self.store_prefix, artifact_path)
        try:
            self.bucket.copy(_join(self.location_prefix, path), target)
        except NotFound:
            raise FileGone(f"{path} is gone from the checkpoint location", hint=GONE_HINT) from None
        except Denied:
            self._remember_denial()
            return None
        digest, size_bytes = hashlib.sha256(), 0
        for chunk in self.bucket.stream(target):
            digest.update(chunk)
            size_bytes += len(chunk)
        return size_bytes, digest.hexdigest()

    def _remember_denial(self) -> None:
        with _LOCK:
            is_new = (self.bucket.url, self.location_prefix) not in _DENIED
            _DENIED.add((self.bucket.url, self.location_prefix))
        if is_new:
            _LOG.warning(
                "%s refuses to copy from the checkpoint location with the store's credentials: large files "
                "are uploaded instead. Let these credentials read %s/, and start again",
                self.bucket.url,
                self.location_prefix,
            )


def find_server_copier(
    location: LocationSpec | CheckpointLocation, url: str, options: Mapping[str, str] | None
) -> ServerCopier | None:
    """What copies from ``location`` to the store at ``url``; None if no one server has both."""
    spec = location.spec if isinstance(location, CheckpointLocation) else location
    if spec.is_foreign:
        return None
    here, there = parse_store_url(spec.url), parse_store_url(url)
    if here.scheme != there.scheme or here.scheme not in _SERVICES:
        return None
    source = parse_store_settings(spec.url, spec.options).backend
    target = parse_store_settings(url, options).backend
    if any(getattr(source, name, None) != getattr(target, name, None) for name in _SAME):
        return None
    if _customer_key(source) != _customer_key(target):
        return None
    scheme, _, rest = url.partition("://")
    root = f"{scheme}://{rest.partition('/')[0]}"
    return ServerCopier(open_object_store(root, options), here.path, there.path)


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
        _check_unchanged(item, *made)
        return item.file.path, _file_ref(item, path, made[1])

    done = run_bounded(copy, list(enumerate(large)), READ_CONCURRENCY)
    return dict(copied for copied in done if copied is not None)


def _customer_key(backend: BackendSettings) -> str | None:
    """The key without which the server can neither read nor copy, if the user keeps it."""
    encryption = backend.server_encryption if isinstance(backend, S3Settings) else None
    return encryption.key if encryption is not None and encryption.algorithm == "SSE-C" else None


def _join(prefix: str, key: str) -> str:
    return f"{prefix}/{key}" if prefix else key
