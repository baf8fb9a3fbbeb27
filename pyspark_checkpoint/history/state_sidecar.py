"""The state sidecar: one stream of bytes that belongs to a checkpoint as a whole."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import IO

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import AlreadyExists, RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths
from pyspark_checkpoint.format.manifest import SIDECAR_NAME, CheckpointManifest
from pyspark_checkpoint.history.artifact_reader import ArtifactReader, stream_stored
from pyspark_checkpoint.history.staging import NO_PARTITION, artifact_context
from pyspark_checkpoint.store.base import ObjectStore

_IN_MEMORY_BYTES = 16 * 1024 * 1024


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
            raise RefusedError(f"checkpoint {attempt.number} has its state already") from None
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


def find_sidecar(manifest: CheckpointManifest) -> ArtifactRef | None:
    """A checkpoint's sidecar, None if it has none."""
    return next((ref for ref in manifest.files if ref.name == SIDECAR_NAME), None)


def iter_sidecar(
    store: ObjectStore, ref: ArtifactRef, *, store_id: str = "", cipher: Cipher | None = None
) -> Iterator[bytes]:
    """Yield a sidecar's bytes in chunks; an error at the end means that none of them may be used."""
    if ref.data_key_id is None:
        yield from stream_stored(store, ref)
        return
    yield ArtifactReader(store, store_id=store_id, cipher=cipher).read(ref)
