"""Proving a store: every record, the chain of manifests, every byte that a checkpoint needs.

Works without keys, because digests are over stored bytes, and without Spark. With a cipher the
manifests' authenticity is proved as well. Garbage that ``prune`` and ``cleanup_orphans`` will remove is
not a finding.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pyspark_checkpoint.crypto.data_keys import decode_wrapped_key
from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import Mac, sha256_hex
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    LATEST_KEY,
    data_key_key,
    manifest_key,
    parse_data_key_key,
    parse_manifest_key,
    parse_seal_key,
    parse_status_key,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.records import (
    Control,
    SinkCommitStatus,
    decode_latest,
    decode_seal,
    decode_status,
)
from pyspark_checkpoint.history.control import find_control_or_new
from pyspark_checkpoint.history.findings import (
    Finding,
    Link,
    check_link,
    check_manifest,
    check_names,
    finding_of,
    link_of,
)
from pyspark_checkpoint.history.head import HeadLocation, locate_head
from pyspark_checkpoint.history.lookup import is_given_up
from pyspark_checkpoint.history.manifest_reader import exists, find_record, load_manifest_bytes
from pyspark_checkpoint.history.parallel import DEFAULT_CONCURRENCY
from pyspark_checkpoint.history.store_cipher import check_wrapped_key
from pyspark_checkpoint.history.verify_bytes import (
    NeededObject,
    Progress,
    check_data_keys,
    check_inline,
    check_objects,
    collect_needed,
    collect_settled,
    data_keys_of,
)
from pyspark_checkpoint.store.base import ObjectStore


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
        yield from check_names(keys, Control(""), 0)
        return
    if pointer is not None and pointer > where.number:
        problem = f"names checkpoint {pointer}, but the newest one is {where.number}"
        yield Finding(LATEST_KEY, problem, pointer)
    for finding in _find_all(
        store,
        where,
        keys,
        mac=mac,
        read_artifacts=read_artifacts,
        max_concurrent_reads=max_concurrent_reads,
        progress=progress,
    ):
        if _still_stands(store, where, finding):
            yield finding


def _find_all(
    store: ObjectStore,
    where: HeadLocation,
    keys: Mapping[str, int],
    *,
    mac: Mac | None,
    read_artifacts: bool,
    max_concurrent_reads: int,
    progress: Progress | None,
) -> Iterator[Finding]:
    seen = _Seen()
    yield from _check_manifests(store, where, keys, mac, seen)
    yield from check_names(keys, where.control, where.number)
    yield from _check_records(store, keys, seen.nonces, where.control.store_id, mac)
    unlisted = {name: number for name, number in seen.data_keys.items() if data_key_key(name) not in keys}
    yield from check_data_keys(store, unlisted)
    if read_artifacts:
        objects = list(seen.needed.values())
        yield from check_objects(
            store, objects, max_concurrent_reads=max_concurrent_reads, progress=progress
        )


def _still_stands(store: ObjectStore, where: HeadLocation, finding: Finding) -> bool:
    """Whether a finding is one: what was pruned or deleted under our eyes is not damaged."""
    number = finding.checkpoint_id
    return number is None or not is_given_up(store, where, number)


def verify_checkpoint(
    store: ObjectStore,
    manifest: CheckpointManifest,
    *,
    max_concurrent_reads: int = DEFAULT_CONCURRENCY,
    progress: Progress | None = None,
) -> list[Finding]:
    """What is wrong with one checkpoint: its manifest's content and every byte that it needs."""
    findings = [*check_manifest(manifest), *check_inline(manifest)]
    needed = collect_needed([manifest])
    keys = dict.fromkeys(data_keys_of(manifest), manifest.checkpoint_id)
    findings.extend(collect_settled(store, manifest, needed, set(), keys))
    objects = list(needed.values())
    findings.extend(
        check_objects(store, objects, max_concurrent_reads=max_concurrent_reads, progress=progress)
    )
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
    parent: Link | None = None
    for number in _numbers(store, where, keys):
        if isinstance(number, Finding):
            yield number
            parent = None
            continue
        link = yield from _check_one(store, control, number, mac, seen)
        if parent is not None and link is not None:
            problems = list(check_link(parent, link))
            if problems and not is_given_up(store, where, parent.number):
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
) -> Generator[Finding, None, Link | None]:
    """Check one manifest and remember what it needs; its place in the chain, None if it is unreadable."""
    key = manifest_key(number)
    data = find_record(store, key)
    if data is None:
        yield Finding(key, "is missing", number)
        return None
    try:
        manifest = load_manifest_bytes(data, number, mac=mac).manifest
    except FormatError as error:
        yield finding_of(error, key, number)
        return None
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
    return link_of(manifest, sha256_hex(data))


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
