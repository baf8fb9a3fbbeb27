"""Checking stored bytes against what manifests say of them, each object once, with bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark_checkpoint.crypto.aead import MANIFEST_KEY_ID
from pyspark_checkpoint.crypto.data_keys import decode_wrapped_key
from pyspark_checkpoint.errors import FormatError, IntegrityError, NotFound
from pyspark_checkpoint.format.artifact import ArtifactRef, verify_integrity
from pyspark_checkpoint.format.keys import data_key_key
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.pack import (
    PACK_HEADER,
    PackEntry,
    pack_tail_bytes,
    read_pack,
    read_pack_index,
)
from pyspark_checkpoint.history.artifact_reader import stream_stored
from pyspark_checkpoint.history.findings import Finding, finding_of
from pyspark_checkpoint.history.manifest_reader import find_record
from pyspark_checkpoint.history.parallel import DEFAULT_CONCURRENCY, iter_bounded
from pyspark_checkpoint.history.settle import read_list
from pyspark_checkpoint.store.base import ObjectStore

_FOOTER_BYTES = 8
_WHOLE_BYTES = 32 * 1024 * 1024


Progress = Callable[[int, int], None]
"""Told after each object: bytes done, bytes in all."""


@dataclass(slots=True)
class NeededObject:
    """An object that checkpoints need: its artifacts, each once, and the newest checkpoint naming it."""

    path: str
    checkpoint_id: int
    refs: dict[tuple[int, int, str], ArtifactRef] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes of the artifacts in it."""
        return sum(size_bytes for _, size_bytes, _ in self.refs)


def collect_needed(
    manifests: Iterable[CheckpointManifest], needed: dict[str, NeededObject] | None = None
) -> dict[str, NeededObject]:
    """All objects that the manifests need, added to ``needed``; what several name is there once."""
    needed = {} if needed is None else needed
    for manifest in manifests:
        _add_needed(needed, manifest.checkpoint_id, manifest.artifacts())
    return needed


def _add_needed(needed: dict[str, NeededObject], number: int, refs: Iterable[ArtifactRef]) -> None:
    for ref in refs:
        if ref.path is None:
            continue
        entry = needed.setdefault(ref.path, NeededObject(ref.path, number))
        entry.checkpoint_id = max(entry.checkpoint_id, number)
        entry.refs[ref.offset, ref.size_bytes, ref.sha256] = ref


def collect_settled(
    store: ObjectStore,
    manifest: CheckpointManifest,
    needed: dict[str, NeededObject],
    known: set[str],
    data_keys: dict[str, int],
) -> Iterator[Finding]:
    """Add what the lists of a manifest name; one that cannot be read, or holds other parts, is a finding.

    ``known`` are the lists that were looked into before: each is read once, whoever names it.
    """
    number = manifest.checkpoint_id
    waiting = list(manifest.settled())
    while waiting:
        ref = waiting.pop()
        if ref.path in known:
            continue
        known.add(ref.path)
        try:
            content = read_list(store, ref)
        except FormatError as error:
            needed.pop(ref.path, None)
            yield finding_of(error, ref.path, number)
            continue
        waiting += content.lists
        refs = [part.ref for part in content.parts]
        late = [one.made_by for one in refs if one.made_by > number or one.epoch > manifest.epoch]
        if late:
            yield Finding(ref.path, f"names what was staged for a later checkpoint, {late[0]}", number)
        _add_needed(needed, number, refs)
        _add_needed(needed, number, [child.artifact() for child in content.lists])
        data_keys.update({key: number for one in refs if (key := one.data_key_id) is not None})


def check_objects(
    store: ObjectStore,
    needed: Sequence[NeededObject],
    *,
    max_concurrent_reads: int = DEFAULT_CONCURRENCY,
    progress: Progress | None = None,
) -> Iterator[Finding]:
    """Read every needed object and report what is not right. A store that fails to answer is an error."""
    done, total = 0, sum(entry.size_bytes for entry in needed)
    checked = iter_bounded(lambda entry: check_object(store, entry), needed, max_concurrent_reads)
    for entry, found in zip(needed, checked, strict=True):
        done += entry.size_bytes
        if progress is not None:
            progress(done, total)
        yield from found


def check_object(store: ObjectStore, entry: NeededObject) -> list[Finding]:
    """What is wrong with one object; a missing one is one finding. Every byte of it is read once."""
    try:
        size_bytes = store.head(entry.path).size_bytes
        if not entry.path.endswith(".pack"):
            return list(_check_plain(store, entry, size_bytes))
        if size_bytes <= _WHOLE_BYTES:
            return list(_check_pack(entry, store.get(entry.path)))
        return list(_check_large_pack(store, entry, size_bytes))
    except NotFound:
        return [Finding(entry.path, "is missing", entry.checkpoint_id)]


def data_keys_of(manifest: CheckpointManifest) -> frozenset[str]:
    """The data keys without which a checkpoint cannot be read, or not be trusted."""
    named = frozenset(ref.data_key_id for ref in manifest.artifacts() if ref.data_key_id is not None)
    return named if manifest.encryption_key_id is None else named | {MANIFEST_KEY_ID}


def check_data_keys(store: ObjectStore, needed: Mapping[str, int]) -> Iterator[Finding]:
    """Report wrapped data keys that are missing or damaged: without its key an artifact is lost.

    ``needed`` has the newest checkpoint that needs a key, by key id.
    """
    for data_key_id, number in sorted(needed.items()):
        key = data_key_key(data_key_id)
        data = find_record(store, key)
        if data is None:
            yield Finding(key, "is missing", number)
            continue
        try:
            decode_wrapped_key(data, key)
        except FormatError as error:
            yield finding_of(error, key, number)


def check_inline(manifest: CheckpointManifest) -> Iterator[Finding]:
    """What is wrong with the artifacts inside a manifest."""
    for ref in manifest.artifacts():
        if ref.inline is not None:
            try:
                verify_integrity("an inline artifact", ref.inline, ref.sha256)
            except IntegrityError as error:
                yield finding_of(error, f"inline artifact {ref.name!r}", manifest.checkpoint_id)


def _check_plain(store: ObjectStore, entry: NeededObject, size_bytes: int) -> Iterator[Finding]:
    if size_bytes != max(ref.offset + ref.size_bytes for ref in entry.refs.values()):
        yield Finding(entry.path, f"has {size_bytes} bytes, not as many as recorded", entry.checkpoint_id)
    for ref in entry.refs.values():
        yield from _check_stream(store, entry, ref)


def _check_pack(entry: NeededObject, data: bytes) -> Iterator[Finding]:
    """Check a pack that is at hand: all of its bytes, and that the manifests' references are its own."""
    try:
        entries = read_pack(entry.path, data)
    except FormatError as error:
        yield finding_of(error, entry.path, entry.checkpoint_id)
        return
    yield from _check_index(entry, entries)


def _check_large_pack(store: ObjectStore, entry: NeededObject, size_bytes: int) -> Iterator[Finding]:
    """The same for a pack that is too large to hold: its frame first, then part by part."""
    footer = store.get(entry.path, start=size_bytes - _FOOTER_BYTES, end=size_bytes)
    try:
        tail_bytes = min(pack_tail_bytes(entry.path, footer), size_bytes)
        head = store.get(entry.path, start=0, end=len(PACK_HEADER))
        tail = store.get(entry.path, start=size_bytes - tail_bytes, end=size_bytes)
        entries = read_pack_index(entry.path, head, tail, object_size_bytes=size_bytes)
    except FormatError as error:
        yield finding_of(error, entry.path, entry.checkpoint_id)
        return
    for part in entries:
        yield from _check_stream(store, entry, part.ref)
    yield from _check_index(entry, entries)


def _check_index(entry: NeededObject, entries: Iterable[PackEntry]) -> Iterator[Finding]:
    known = {(part.ref.offset, part.ref.size_bytes, part.ref.sha256) for part in entries}
    for offset, size_bytes, sha256 in entry.refs:
        if (offset, size_bytes, sha256) not in known:
            problem = f"has no such part at byte {offset}, though a checkpoint names it"
            yield Finding(entry.path, problem, entry.checkpoint_id, expected=sha256)


def _check_stream(store: ObjectStore, entry: NeededObject, ref: ArtifactRef) -> Iterator[Finding]:
    try:
        for _ in stream_stored(store, ref):
            pass
    except FormatError as error:
        yield finding_of(error, entry.path, entry.checkpoint_id)
