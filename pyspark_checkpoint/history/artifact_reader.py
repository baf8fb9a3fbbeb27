"""Reading artifacts: neighbours in one request, every byte checked, nothing passed on that is not right."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark_checkpoint.crypto.keyring import KEY_RING_HINT
from pyspark_checkpoint.errors import (
    FormatError,
    IntegrityError,
    Invalid,
    MissingKey,
    NoCheckpoint,
    NotFound,
)
from pyspark_checkpoint.format.artifact import ArtifactRef, verify_integrity
from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.manifest import SIDECAR_NAME, CheckpointManifest
from pyspark_checkpoint.format.ranges import ReadRange, coalesce_ranges, cut_range
from pyspark_checkpoint.history.manifest_reader import missing_object
from pyspark_checkpoint.history.settle import unfolded
from pyspark_checkpoint.history.staging import NO_PARTITION, artifact_context
from pyspark_checkpoint.store.base import CHUNK_BYTES, ObjectStore
from pyspark_checkpoint.store.parallel import DEFAULT_CONCURRENCY, iter_bounded

_Place = tuple[str | None, int, int, str]


@dataclass(frozen=True, slots=True)
class WantedArtifact:
    """An artifact and whose it is, which encryption binds it to."""

    ref: ArtifactRef
    operator: str = ""
    partition: int = NO_PARTITION


class KnownArtifacts(Protocol):
    """Artifacts whose bytes are at hand."""

    def find(self, ref: ArtifactRef) -> bytes | None:
        """The bytes of an artifact as they were before they were encrypted; None if they must be read."""


def wanted_artifacts(manifest: CheckpointManifest, operator: str, partition: int) -> list[WantedArtifact]:
    """The artifacts of one partition, in the order to apply, as far as the manifest itself names them."""
    entry = manifest.operators.get(operator)
    for part in entry.partitions if entry is not None else ():
        if part.partition_id == partition:
            return [WantedArtifact(ref, operator, partition) for ref in part.artifacts]
    raise NoCheckpoint(
        f"checkpoint {manifest.checkpoint_id} has no partition {partition} of operator {operator!r}",
        hint="its manifest's operators say which partitions there are",
    )


class ArtifactReader:
    """Reads artifacts of one store, decrypted if it has a cipher. May be shared by threads."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        store_id: str = "",
        cipher: Cipher | None = None,
        max_concurrent_reads: int = DEFAULT_CONCURRENCY,
        known: KnownArtifacts | None = None,
    ) -> None:
        self._store = store
        self._known = known
        self._store_id = store_id
        self._cipher = cipher
        self._limit = max_concurrent_reads

    def read(self, ref: ArtifactRef, operator: str = "", partition: int = NO_PARTITION) -> bytes:
        """One artifact's bytes."""
        return self.read_many([WantedArtifact(ref, operator, partition)])[0]

    def read_many(self, wanted: Sequence[WantedArtifact]) -> list[bytes]:
        """All artifacts' bytes, in order, with as few requests as their places allow."""
        known = [None if self._known is None else self._known.find(want.ref) for want in wanted]
        stored = self._read_stored(
            want.ref for want, data in zip(wanted, known, strict=True) if data is None
        )
        return [
            self._open(want, stored[_place(want.ref)]) if data is None else data
            for want, data in zip(wanted, known, strict=True)
        ]

    def has_bytes(self, want: WantedArtifact, data: bytes) -> bool:
        """Whether an artifact holds ``data``. Its digest tells; an encrypted one is read to know."""
        if want.ref.data_key_id is None:
            return want.ref.size_bytes == len(data) and want.ref.sha256 == sha256_hex(data)
        return self.read_many([want]) == [data]

    def read_partition(self, manifest: CheckpointManifest, operator: str, partition: int) -> list[bytes]:
        """The snapshot, if there is one, and the deltas of a partition, in the order to apply."""
        entry = manifest.operators.get(operator)
        if entry is not None and entry.settled:
            whole = unfolded(self._store, entry)
            manifest = replace(manifest, operators={**manifest.operators, operator: whole})
        return self.read_many(wanted_artifacts(manifest, operator, partition))

    def _read_stored(self, refs: Iterable[ArtifactRef]) -> dict[_Place, bytes]:
        unique = {_place(ref): ref for ref in refs}
        found: dict[_Place, bytes] = {}
        for place, ref in unique.items():
            if ref.inline is not None:
                verify_integrity("an inline artifact", ref.inline, ref.sha256)
                found[place] = ref.inline
        plan = coalesce_ranges(ref for ref in unique.values() if ref.inline is None)
        for pairs in iter_bounded(lambda part: _read_range(self._store, part), plan, self._limit):
            found.update((_place(ref), data) for ref, data in pairs)
        return found

    def _open(self, want: WantedArtifact, data: bytes) -> bytes:
        ref = want.ref
        if ref.data_key_id is None:
            return data
        if self._cipher is None:
            raise MissingKey(
                ref.data_key_id,
                f"the store is encrypted, and no key ring was given to open data key {ref.data_key_id}",
                hint=KEY_RING_HINT,
            )
        context = artifact_context(
            self._store_id,
            ref.made_by,
            want.operator,
            want.partition,
            is_delta=ref.is_delta,
            name=ref.name,
        )
        return self._cipher.decrypt(data, ref.data_key_id, context)


def _read_range(store: ObjectStore, part: ReadRange) -> list[tuple[ArtifactRef, bytes]]:
    """Read one range and cut it into its artifacts."""
    return list(cut_range(part, _get_range(store, part.path, part.start, part.end)))


def _get_range(store: ObjectStore, path: str, start: int, end: int) -> bytes:
    """A range of an object; a missing or short object is an error that names it."""
    try:
        data = store.get(path, start=start, end=end)
    except NotFound:
        raise missing_object(path) from None
    except Invalid:
        data = b""
    if len(data) != end - start:
        raise FormatError(f"{path} is shorter than recorded")
    return data


def stream_stored(
    store: ObjectStore, ref: ArtifactRef, *, chunk_bytes: int = CHUNK_BYTES, ahead: int = 1
) -> Iterator[bytes]:
    """Yield an artifact's stored bytes with bounded memory; the digest is checked after the last chunk.

    ``ahead`` chunks are asked for at a time. Whoever uses this must not make the bytes visible before the
    iterator has ended without an error.
    """
    if ref.path is None:
        verify_integrity("an inline artifact", ref.inline or b"", ref.sha256)
        yield ref.inline or b""
        return
    path, end = ref.path, ref.offset + ref.size_bytes
    starts = range(ref.offset, end, chunk_bytes)
    digest = hashlib.sha256()
    for chunk in iter_bounded(
        lambda start: _get_range(store, path, start, min(start + chunk_bytes, end)), starts, ahead
    ):
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != ref.sha256:
        raise IntegrityError(path, ref.sha256, digest.hexdigest())


def _place(ref: ArtifactRef) -> _Place:
    return ref.path, ref.offset, ref.size_bytes, ref.sha256


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
