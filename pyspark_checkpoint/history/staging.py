"""Staging: artifacts go up before the manifest that names them; tiny ones travel inside it.

Few requests, whatever the number of partitions: small artifacts share packs, large ones stand alone.
Everything is created, never replaced, under names that only this attempt uses.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import AlreadyExists, NotFound, RefusedError, Unavailable
from pyspark_checkpoint.format.artifact import ArtifactRef, ColumnBounds
from pyspark_checkpoint.format.cipher import ArtifactContext, Cipher
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths
from pyspark_checkpoint.format.manifest import SIDECAR_NAME, CheckpointManifest, RequestCount
from pyspark_checkpoint.format.pack import DEFAULT_BOUNDS, PackBounds, Part, build_pack, plan_packs
from pyspark_checkpoint.history.manifest_reader import create_object
from pyspark_checkpoint.store.base import Body, ObjectStore
from pyspark_checkpoint.store.parallel import DEFAULT_CONCURRENCY, run_bounded

_PUT_ATTEMPTS = 10
NO_PARTITION = -1
_IN_MEMORY_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StagedItem:
    """Bytes that are to become an artifact. ``operator`` is empty for what belongs to no partition."""

    data: bytes = field(repr=False)
    is_delta: bool
    epoch: int
    operator: str = ""
    partition: int = NO_PARTITION
    name: str = ""
    decoded_bytes: int = 0
    bounds: tuple[ColumnBounds, ...] = ()
    """Of its rows; they stay in the manifest, and are left out of it where artifacts are encrypted."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Where the items went, in their order, and what that cost."""

    refs: tuple[ArtifactRef, ...] = ()
    requests: RequestCount = field(default_factory=RequestCount)


@dataclass(frozen=True, slots=True)
class _Upload:
    """One object to create, and the positions of the items in it with their final references."""

    path: str
    data: bytes
    refs: tuple[tuple[int, ArtifactRef], ...]


def stage(
    store: ObjectStore,
    attempt: CheckpointId,
    items: Sequence[StagedItem],
    *,
    store_id: str = "",
    cipher: Cipher | None = None,
    inline_used_bytes: int = 0,
    bounds: PackBounds = DEFAULT_BOUNDS,
    max_concurrent_uploads: int = DEFAULT_CONCURRENCY,
    clock: Clock = SYSTEM_CLOCK,
) -> Staged:
    """Make the items durable, or inline, and return one reference an item, in order.

    ``inline_used_bytes`` is what the manifest will carry inline besides. One call an attempt: a second
    one would use the same names, and is refused by the store unless the bytes are the same.
    """
    parts = [_part(item, attempt, store_id, cipher) for item in items]
    plan = plan_packs(
        [part.ref.size_bytes for part in parts], inline_used_bytes=inline_used_bytes, bounds=bounds
    )
    uploads = [
        _packed(CheckpointPaths.pack(attempt, index), parts, positions)
        for index, positions in enumerate(plan.packs)
    ]
    paths = _alone_paths(attempt, items, plan.alone)
    uploads += [_alone(path, parts, at) for path, at in zip(paths, plan.alone, strict=True)]
    run_bounded(lambda up: put_artifact(store, up.path, up.data, clock), uploads, max_concurrent_uploads)
    placed = {at: parts[at].ref for at in plan.inline}
    placed.update(pair for upload in uploads for pair in upload.refs)
    if len(placed) != len(items):
        raise RefusedError(
            f"{len(items)} artifacts were to be staged, {len(placed)} were",
            hint="nothing was committed; this is a bug of pyspark-checkpoint: please report it",
        )
    size_bytes = sum(len(upload.data) for upload in uploads)
    return Staged(tuple(placed[at] for at in range(len(items))), RequestCount(len(uploads), 0, size_bytes))


def artifact_context(
    store_id: str, number: int, operator: str, partition: int, *, is_delta: bool, name: str
) -> ArtifactContext:
    """What an encrypted artifact is bound to, from what its reference and its place in a manifest say."""
    kind = "delta" if is_delta else "snapshot"
    return ArtifactContext(store_id, number, operator, partition, f"{kind}:{name}" if name else kind)


def put_artifact(store: ObjectStore, path: str, data: bytes, clock: Clock) -> None:
    """Create an artifact's object. If it is there with the same bytes, it was an earlier try of ours."""

    def find_digest() -> str | None:
        there = find_bytes(store, path, len(data) + 1)
        return None if there is None else sha256_hex(there)

    _put_settled(store, path, data, clock, digest=lambda: sha256_hex(data), find_digest=find_digest)


def put_artifact_file(store: ObjectStore, path: str, file: IO[bytes], sha256: str, clock: Clock) -> None:
    """The same for a file, from its beginning, of which ``sha256`` is the digest; memory is bounded."""
    found = partial(_find_stream_digest, store, path)
    _put_settled(store, path, file, clock, digest=lambda: sha256, find_digest=found)


def _put_settled(
    store: ObjectStore,
    path: str,
    body: Body,
    clock: Clock,
    *,
    digest: Callable[[], str],
    find_digest: Callable[[], str | None],
) -> None:
    for _ in range(_PUT_ATTEMPTS):
        if create_object(store, path, body, clock):
            return
        there = find_digest()
        if there is None:
            continue  # collected as an orphan just now: the number is taken, and publishing will say so
        if there != digest():
            raise RefusedError(f"{path} is there with other bytes", hint="stage it once")
        return
    raise Unavailable(
        f"{path} was deleted {_PUT_ATTEMPTS} times after it was created",
        key=path,
        hint="its checkpoint's number is taken, and a clean-up runs; begin the batch again",
    )


def _find_stream_digest(store: ObjectStore, path: str) -> str | None:
    digest = hashlib.sha256()
    try:
        for chunk in store.stream(path):
            digest.update(chunk)
    except NotFound:
        return None
    return digest.hexdigest()


def find_bytes(store: ObjectStore, path: str, limit: int) -> bytes | None:
    """An object's first bytes, None if it is absent."""
    try:
        return store.get(path, start=0, end=limit)
    except NotFound:
        return None


def _part(item: StagedItem, attempt: CheckpointId, store_id: str, cipher: Cipher | None) -> Part:
    data, key_id = item.data, None
    if cipher is not None:
        context = artifact_context(
            store_id,
            attempt.number,
            item.operator,
            item.partition,
            is_delta=item.is_delta,
            name=item.name,
        )
        data, key_id = cipher.encrypt(item.data, context), cipher.data_key_id
    ref = ArtifactRef.of_inline(
        data,
        is_delta=item.is_delta,
        epoch=item.epoch,
        name=item.name,
        data_key_id=key_id,
        made_by=attempt.number,
        decoded_bytes=item.decoded_bytes,
    )
    if cipher is None and item.bounds:
        ref = replace(ref, bounds=item.bounds)
    return Part(item.operator, item.partition, ref)


def _packed(path: str, parts: Sequence[Part], positions: Sequence[int]) -> _Upload:
    pack = build_pack(path, [parts[at] for at in positions])
    return _Upload(path, pack.data, tuple(zip(positions, pack.refs, strict=True)))


def _alone(path: str, parts: Sequence[Part], at: int) -> _Upload:
    return _Upload(path, parts[at].data, ((at, parts[at].ref.moved(path, 0)),))


def _alone_paths(attempt: CheckpointId, items: Sequence[StagedItem], alone: Sequence[int]) -> list[str]:
    """A partition's only artifact has the partition's name; others are numbered."""
    paths: list[str] = []
    taken: set[str] = set()
    for index, at in enumerate(alone):
        item = items[at]
        path = CheckpointPaths.file(attempt, index)
        if item.operator and item.partition >= 0 and not item.name:
            build = CheckpointPaths.delta if item.is_delta else CheckpointPaths.snapshot
            path = build(attempt, item.operator, item.partition)
            path = CheckpointPaths.file(attempt, index) if path in taken else path
        taken.add(path)
        paths.append(path)
    return paths


# --- the state sidecar: one stream of bytes that belongs to a checkpoint as a whole --------------------


def stage_sidecar(
    store: ObjectStore,
    attempt: CheckpointId,
    chunks: Iterable[bytes],
    clock: Clock,
    *,
    store_id: str = "",
    cipher: Cipher | None = None,
) -> ArtifactRef:
    """Store chunks, one after the other, as an attempt's sidecar. Bounded memory, unless encrypted."""
    path, key_id = CheckpointPaths.state(attempt), None
    if cipher is not None:
        context = artifact_context(
            store_id, attempt.number, "", NO_PARTITION, is_delta=False, name=SIDECAR_NAME
        )
        chunks, key_id = [cipher.encrypt(b"".join(chunks), context)], cipher.data_key_id
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as file:
        size_bytes, sha256 = _fill(file, chunks)
        file.seek(0)
        try:
            store.put(path, file, if_absent=True, nonce=clock.nonce())
        except AlreadyExists:
            raise RefusedError(
                f"checkpoint {attempt.number} has its state already",
                hint="stage it once, or take a new attempt",
            ) from None
    return ArtifactRef(path, size_bytes, sha256, False, 0, name=SIDECAR_NAME, data_key_id=key_id)


def _fill(
    file: tempfile.SpooledTemporaryFile[bytes] | IO[bytes], chunks: Iterable[bytes]
) -> tuple[int, str]:
    digest, size_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size_bytes += len(chunk)
        file.write(chunk)
    return size_bytes, digest.hexdigest()


def with_sidecar(draft: CheckpointManifest, state: ArtifactRef) -> CheckpointManifest:
    """The draft with this sidecar, in place of one that it may have taken over from its parent."""
    others = tuple(ref for ref in draft.files if ref.name != SIDECAR_NAME)
    mine = replace(state, epoch=draft.epoch)
    return replace(draft, files=(*others, mine), state_checksum=state.sha256)
