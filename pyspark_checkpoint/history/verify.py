"""Proving a store: every record, the chain of manifests, every byte that a checkpoint needs.

Works without keys, because digests are over stored bytes, and without Spark. With a cipher the manifests'
authenticity is proved as well. Each object is read once, with bounded memory. Garbage that ``prune`` and
``cleanup_orphans`` will remove is not a finding.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark_checkpoint.crypto.aead import MANIFEST_KEY_ID
from pyspark_checkpoint.crypto.data_keys import decode_wrapped_key
from pyspark_checkpoint.errors import CheckpointError, FormatError, IntegrityError, NotFound
from pyspark_checkpoint.format.artifact import ArtifactRef, verify_integrity
from pyspark_checkpoint.format.envelope import Mac
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    LATEST_KEY,
    data_key_key,
    manifest_key,
    parse_attempt_key,
    parse_data_key_key,
    parse_manifest_key,
    parse_seal_key,
    parse_status_key,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.pack import (
    FOOTER_BYTES,
    PACK_HEADER,
    PACK_SUFFIX,
    Part,
    pack_tail_bytes,
    read_pack,
    read_pack_index,
)
from pyspark_checkpoint.format.records import (
    Control,
    SinkCommitStatus,
    decode_latest,
    decode_seal,
    decode_status,
)
from pyspark_checkpoint.history.artifact_reader import stream_stored
from pyspark_checkpoint.history.control import find_control_or_new
from pyspark_checkpoint.history.head import HeadLocation, locate_head
from pyspark_checkpoint.history.lookup import was_removed_since
from pyspark_checkpoint.history.manifest_reader import (
    LoadedManifest,
    exists,
    find_record,
    load_manifest_bytes,
)
from pyspark_checkpoint.history.settle import read_list
from pyspark_checkpoint.history.store_cipher import check_wrapped_key
from pyspark_checkpoint.spark_files.consistency import check_fit
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.parallel import DEFAULT_CONCURRENCY, Progress, iter_bounded
from pyspark_checkpoint.store.probe import PROBE_PREFIX

# --- what can be seen without bytes: pure -----------------------------------------------------------


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


def finding_of(error: CheckpointError, obj: str, checkpoint_id: int | None = None) -> Finding:
    """A finding from what reading an object raised."""
    if isinstance(error, IntegrityError):
        return Finding(obj, "has another digest than recorded", checkpoint_id, error.expected, error.actual)
    return Finding(obj, error.message, checkpoint_id)


def check_link(before: LoadedManifest, after: LoadedManifest) -> Iterator[Finding]:
    """What does not fit between a manifest and the next one."""
    parent, child = before.manifest, after.manifest
    key, number = manifest_key(after.number), after.number
    if child.parent_sha256 != before.chain_sha256:
        problem = "does not follow its parent"
        yield Finding(key, problem, number, expected=before.chain_sha256, actual=child.parent_sha256)
    if child.parent_id != before.number:
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


def check_object_names(keys: Mapping[str, int], control: Control, head_number: int) -> Iterator[Finding]:
    """Objects that do not belong: strange names, and manifests beyond the head."""
    for key in keys:
        number = parse_manifest_key(key) or parse_seal_key(key)
        if not is_known_name(key):
            yield Finding(key, "is no object of this store")
        elif number is not None and number > head_number:
            yield Finding(key, f"lies beyond a gap: the newest checkpoint is {head_number}", number)
    if control.floor > max(head_number, 1):
        yield Finding(CONTROL_KEY, f"has floor {control.floor} above the newest checkpoint {head_number}")


# --- records and manifests --------------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    """What reading the manifests has shown so far."""

    nonces: dict[int, str] = field(default_factory=dict)
    needed: dict[str, NeededObject] = field(default_factory=dict)
    data_keys: dict[str, int] = field(default_factory=dict)
    lists: set[str] = field(default_factory=set)


def verify_store(
    store: ObjectStore,
    *,
    mac: Mac | None = None,
    read_artifacts: bool = True,
    max_concurrent_reads: int = DEFAULT_CONCURRENCY,
    progress: Progress | None = None,
) -> Iterator[Finding]:
    """Yield everything that is not as it should be, as it is found. An unreachable store is an error.

    The listing comes before the head, so that commits made meanwhile are not taken for strays.
    ``read_artifacts=False`` checks records, manifests and chain only.
    """
    try:
        state = find_control_or_new(store)
        pointer = None if state is None else _find_pointer(store)
        keys = {info.key: info.size_bytes for info in store.list()}
        where = None if state is None else locate_head(store)
    except FormatError as error:
        yield finding_of(error, CONTROL_KEY)
        return
    if where is None:
        yield from check_object_names(keys, Control(""), 0)
        return
    if pointer is not None and pointer > where.number:
        problem = f"names checkpoint {pointer}, but the newest one is {where.number}"
        yield Finding(LATEST_KEY, problem, pointer)
    seen = _Seen()

    def find_all() -> Iterator[Finding]:
        yield from _check_manifests(store, where, keys, mac, seen)
        yield from check_object_names(keys, where.control, where.number)
        yield from _check_records(store, keys, seen.nonces, where.control.store_id, mac)
        unlisted = {
            name: number for name, number in seen.data_keys.items() if data_key_key(name) not in keys
        }
        yield from check_data_keys(store, unlisted)
        if read_artifacts:
            needed = list(seen.needed.values())
            yield from check_objects(
                store, needed, max_concurrent_reads=max_concurrent_reads, progress=progress
            )

    yield from (finding for finding in find_all() if _still_stands(store, where, finding))


def _still_stands(store: ObjectStore, where: HeadLocation, finding: Finding) -> bool:
    """Whether a finding is one: what was pruned or deleted under our eyes is not damaged."""
    number = finding.checkpoint_id
    return number is None or not was_removed_since(store, where, number)


def verify_checkpoint(
    store: ObjectStore,
    manifest: CheckpointManifest,
    *,
    max_concurrent_reads: int = DEFAULT_CONCURRENCY,
) -> list[Finding]:
    """What is wrong with one checkpoint: its manifest's content and every byte that it needs."""
    findings = [*check_manifest(manifest), *check_inline(manifest)]
    needed = collect_needed([manifest])
    keys = dict.fromkeys(data_keys_of(manifest), manifest.checkpoint_id)
    findings.extend(collect_settled(store, manifest, needed, set(), keys))
    objects = list(needed.values())
    findings.extend(check_objects(store, objects, max_concurrent_reads=max_concurrent_reads))
    findings.extend(check_data_keys(store, keys))
    return findings


def _find_pointer(store: ObjectStore) -> int | None:
    """What the pointer says, read before the head: it is moved after the manifest that it names."""
    data = find_record(store, LATEST_KEY)
    try:
        return None if data is None else decode_latest(data)
    except FormatError:
        return None


def _check_manifests(
    store: ObjectStore, where: HeadLocation, keys: Iterable[str], mac: Mac | None, seen: _Seen
) -> Iterator[Finding]:
    control, head_number = where.control, where.number
    parent: LoadedManifest | None = None
    for number in _numbers(store, where, keys):
        if isinstance(number, Finding):
            yield number
            parent = None
            continue
        link = yield from _check_one(store, control, number, mac, seen)
        if parent is not None and link is not None:
            problems = list(check_link(parent, link))
            if problems and not was_removed_since(store, where, parent.number):
                yield from problems
        parent = link
    for name, pin in sorted(control.pins.items()):
        if pin.number > head_number:
            # The control record is read after the head: what it pins may be newer than that.
            if not exists(store, manifest_key(pin.number)):
                problem = f"pin {name!r} names checkpoint {pin.number}, which does not exist"
                yield Finding(CONTROL_KEY, problem, pin.number)
            continue
        link = yield from _check_one(store, control, pin.number, mac, seen)
        if link is not None and link.sha256 != pin.sha256:
            key = manifest_key(pin.number)
            problem = f"is not the manifest that {name!r} pins"
            yield Finding(key, problem, pin.number, expected=pin.sha256, actual=link.sha256)


def _numbers(store: ObjectStore, where: HeadLocation, keys: Iterable[str]) -> Iterator[int | Finding]:
    """Every number from the floor to the head that has a manifest, and a finding for every gap.

    The work follows what is stored: the head's number is one that anybody may have written, and a gap of
    any length is looked at once. What was made since the listing is found by its number.
    """
    known = {number for key in keys if (number := parse_manifest_key(key)) is not None}
    listed = sorted(known)
    number = where.control.floor
    while number <= where.number:
        if number in known or exists(store, manifest_key(number)):
            yield number
            number += 1
            continue
        at = bisect_right(listed, number)
        last = min(listed[at] - 1 if at < len(listed) else where.number - 1, where.number - 1)
        more = f", as are all up to {last}" if last > number else ""
        yield Finding(manifest_key(number), f"is missing{more}", number)
        number = max(last, number) + 1


def _check_one(
    store: ObjectStore, control: Control, number: int, mac: Mac | None, seen: _Seen
) -> Generator[Finding, None, LoadedManifest | None]:
    """Check one manifest and remember what it needs; None if it is unreadable."""
    key = manifest_key(number)
    data = find_record(store, key)
    if data is None:
        yield Finding(key, "is missing", number)
        return None
    try:
        loaded = load_manifest_bytes(data, number, mac=mac)
    except FormatError as error:
        yield finding_of(error, key, number)
        return None
    manifest = loaded.manifest
    if number not in seen.nonces:
        yield from check_manifest(manifest)
        yield from check_inline(manifest)
        if manifest.kind is ManifestKind.TOMBSTONE and number >= control.floor:
            if number not in control.deleted:
                yield Finding(key, "is a tombstone of a checkpoint that was not deleted", number)
        elif number not in control.deleted:
            collect_needed([manifest], seen.needed)
            seen.data_keys.update(dict.fromkeys(data_keys_of(manifest), number))
            yield from collect_settled(store, manifest, seen.needed, seen.lists, seen.data_keys)
        seen.nonces[number] = manifest.commit_nonce
    return loaded


def _check_records(
    store: ObjectStore, keys: Iterable[str], nonces: Mapping[int, str], store_id: str, mac: Mac | None
) -> Iterator[Finding]:
    """Check the small records: readable, and of the manifest that they lie beside."""
    for key in keys:
        try:
            problem = _record_problem(store, key, nonces, store_id, mac)
        except FormatError as error:
            yield finding_of(error, key)
            continue
        if problem is not None:
            yield Finding(key, problem)


def _record_problem(
    store: ObjectStore, key: str, nonces: Mapping[int, str], store_id: str, mac: Mac | None
) -> str | None:
    seal, status = parse_seal_key(key), parse_status_key(key)
    data_key_id = parse_data_key_key(key)
    if seal is None and status is None and key != LATEST_KEY and data_key_id is None:
        return None
    data = find_record(store, key)
    if data is None:
        return None
    if key == LATEST_KEY:
        decode_latest(data)
        return None
    if data_key_id is not None:
        check_wrapped_key(decode_wrapped_key(data, key), store_id, data_key_id)
        return None
    if seal is not None:
        record = decode_seal(data, key, mac=mac)
        return _stray(record.checkpoint_id, record.commit_nonce, seal, nonces)
    if status is not None:
        sink = decode_status(data, key, mac=mac)
        if sink.sink != status.sink:
            return f"is the record of sink {sink.sink!r}"
        if (sink.status is SinkCommitStatus.COMMITTED) != (status.failure is None):
            return f"says that the sink has {sink.status.value}"
        return _stray(sink.checkpoint_id, sink.commit_nonce, status.number, nonces)
    return None


def _stray(checkpoint_id: int, nonce: str, number: int, nonces: Mapping[int, str]) -> str | None:
    if checkpoint_id != number:
        return f"is the record of checkpoint {checkpoint_id}"
    if number in nonces and nonces[number] != nonce:
        return "carries the nonce of another manifest"
    return None


# --- stored bytes against what manifests say of them ------------------------------------------------


_WHOLE_BYTES = 32 * 1024 * 1024


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
        if not entry.path.endswith(PACK_SUFFIX):
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
    footer = store.get(entry.path, start=size_bytes - FOOTER_BYTES, end=size_bytes)
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


def _check_index(entry: NeededObject, entries: Iterable[Part]) -> Iterator[Finding]:
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
