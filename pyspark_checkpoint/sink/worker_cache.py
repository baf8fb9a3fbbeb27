"""What a Python worker remembers between batches: open stores and locations, the head, the run.

Spark plans a batch in one process and commits it in another, and keeps both for the next batch. Both
may be replaced at any time by a fresh fork, so nothing here is more than a cache: the store has the truth.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pyspark_checkpoint.capture.upload_plan import KnownFile
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.crypto.keyring import find_key_ring, load_key_ring
from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import Mac
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.history.control import (
    ControlState,
    ensure_control,
    find_control,
    find_control_or_new,
)
from pyspark_checkpoint.history.head import Head, find_head, head_from_bytes
from pyspark_checkpoint.history.live_set import SummaryCache
from pyspark_checkpoint.history.manifest_reader import find_manifest
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.store_cipher import StoreCipher, choose_cipher, read_with
from pyspark_checkpoint.sink.query import WriterFacts
from pyspark_checkpoint.sink.table_options import SharedOptions, WriteOptions
from pyspark_checkpoint.spark_files.inventory import OperatorFiles
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec
from pyspark_checkpoint.spark_files.log_reader import LocationLogs
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.open import open_object_store, parse_store_settings
from pyspark_checkpoint.store.parallel import run_bounded
from pyspark_checkpoint.store.probe import require_conditional_writes

_T = TypeVar("_T")
_MAX_CACHED = 64
_MAX_CLIMB = 8
_RECENT_BYTES = 64 * 1024 * 1024
_Key = tuple[object, ...]


class ProcessCache(Generic[_T]):
    """Values by key, of this process only: what a parent process had before a fork is left alone."""

    def __init__(self) -> None:
        self._values: dict[_Key, _T] = {}

    def get(self, key: _Key, make: Callable[[], _T]) -> _T:
        """The value of ``key``, made if this process has none."""
        full = (os.getpid(), *key)
        if full not in self._values:
            self.put(key, make())
        return self._values[full]

    def find(self, key: _Key) -> _T | None:
        """The value of ``key``, None if this process has none."""
        return self._values.get((os.getpid(), *key))

    def put(self, key: _Key, value: _T) -> None:
        """Remember a value; the oldest one goes if there are too many."""
        full = (os.getpid(), *key)
        if full not in self._values and len(self._values) >= _MAX_CACHED:
            self._values.pop(next(iter(self._values)))
        self._values[full] = value

    def drop(self, key: _Key) -> None:
        """Forget a value."""
        self._values.pop((os.getpid(), *key), None)

    def values(self) -> list[_T]:
        """All values."""
        return list(self._values.values())

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A store that is open here, its cipher if it is encrypted, and what manifests are read with."""

    store: ObjectStore
    store_id: str
    cipher: StoreCipher | None
    mac: Mac | None
    control: Control
    """As it was when the store was opened."""
    is_new: bool = False
    """Whether opening it made its control record."""


@dataclass(frozen=True, slots=True)
class SeenHead:
    """The newest checkpoint as a reader has found it. It has no secrets, and may be sent to another."""

    number: int
    data: bytes = field(repr=False)
    """The bytes of its manifest, which are checked again by who uses them."""
    control: Control = field(repr=False)

    @staticmethod
    def of(head: Head) -> SeenHead:
        """What to keep of a head."""
        return SeenHead(head.number, head.data, head.control)


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """A table that is open for reading, and its head; None if nothing was committed."""

    opened: OpenTable
    head: Head | None


@dataclass(frozen=True, slots=True)
class OpenLocation:
    """A checkpoint location that this process has open, and what it has read there."""

    location: CheckpointLocation
    logs: LocationLogs


@dataclass(frozen=True, slots=True)
class LastCommit:
    """What the last commit of a run in this process saw; other processes may have committed since."""

    batch_id: int
    newest_version: int
    """The newest version that any state file had when the whole location was listed."""
    files: Mapping[str, KnownFile] = field(default_factory=dict)
    """Spark's small files, by path."""
    state: tuple[OperatorFiles, ...] = ()
    """The state files that it has chosen."""


class RecentArtifacts:
    """The newest small artifacts of a table, which compaction reads again soon."""

    def __init__(self) -> None:
        self._bytes: dict[_Key, bytes] = {}
        self._total = 0

    def find(self, ref: ArtifactRef) -> bytes | None:
        """The bytes of an artifact, None if they are not remembered."""
        return self._bytes.get((ref.path, ref.offset, ref.sha256))

    def put(self, ref: ArtifactRef, data: bytes) -> None:
        """Remember an artifact; the oldest ones go if there are too many."""
        key = (ref.path, ref.offset, ref.sha256)
        self._total += len(data) - len(self._bytes.pop(key, b""))
        self._bytes[key] = data
        while self._total > _RECENT_BYTES:
            self._total -= len(self._bytes.pop(next(iter(self._bytes))))


@dataclass(frozen=True, slots=True)
class PlannedHead:
    """The head that a batch was planned on; number 0 for a store without any."""

    number: int
    sha256: str


class WorkerCache:
    """Everything that a Python worker remembers from one batch to the next. ``CACHE`` is the only one."""

    def __init__(self) -> None:
        self.stores: ProcessCache[ObjectStore] = ProcessCache()
        self.tables: ProcessCache[OpenTable] = ProcessCache()
        self.heads: ProcessCache[Head | None] = ProcessCache()
        """The head that the last batch was planned on, by table."""
        self.seen: ProcessCache[SeenHead] = ProcessCache()
        """The head that the last read has found, by table."""
        self.runs: ProcessCache[Run] = ProcessCache()
        self.summaries: ProcessCache[SummaryCache] = ProcessCache()
        """The manifests that a prune looks at, by table."""
        self.locations: ProcessCache[OpenLocation] = ProcessCache()
        self.readable: ProcessCache[bool] = ProcessCache()
        """The checkpoint locations that could be read."""
        self.recent: ProcessCache[RecentArtifacts] = ProcessCache()
        """What the driver has written or read for tasks without Python, by table."""
        self.last_commits: ProcessCache[LastCommit] = ProcessCache()
        """By run and checkpoint location."""
        self.warnings: ProcessCache[bool] = ProcessCache()
        """What was logged already, because it is true for every batch."""

    def forget(self) -> None:
        """Forget everything, as a process that is replaced by a fresh one does."""
        for cache in vars(self).values():
            cache.clear()


CACHE = WorkerCache()


def store_key(shared: SharedOptions) -> _Key:
    """What tells stores apart."""
    return (shared.path, tuple(sorted(shared.store_options.items())), shared.key_file)


def open_store(shared: SharedOptions) -> ObjectStore:
    """The store, opened once per process."""
    return CACHE.stores.get(store_key(shared), lambda: open_object_store(shared.path, shared.store_options))


def open_for_writing(shared: SharedOptions, *, store_id: str = "") -> OpenTable:
    """The store, made if it is new, and known to keep two drivers apart.

    ``store_id`` is what another process has found there, which has probed the store then. If this one
    remembers another id, the store was deleted and created again, and is opened anew.
    """

    def opened() -> OpenTable:
        store = open_store(shared)
        if store_id:
            state = ensure_control(store, SYSTEM_CLOCK)
        else:
            found = _look_and_probe(shared, store)
            state = found or ensure_control(store, SYSTEM_CLOCK, is_new=True)
        return _opened(shared, store, state.control, writing=True, is_new=state.made)

    known = CACHE.tables.find(store_key(shared))
    if known is not None and store_id not in ("", known.store_id):
        _forget_table(shared)
    return CACHE.tables.get(store_key(shared), opened)


def _look_and_probe(shared: SharedOptions, store: ObjectStore) -> ControlState | None:
    """The control record, None if nothing was ever committed; found while the store is being probed.

    Both take a dozen requests one after the other. Nothing but the probe's own objects is written before
    the store has passed.
    """
    unsafe = parse_store_settings(shared.path, shared.store_options).allow_unsafe_store
    looks: tuple[Callable[[], ControlState | None], ...] = (
        lambda: require_conditional_writes(store, unsafe),
        lambda: find_control_or_new(store, at_once=True),
    )
    return run_bounded(lambda look: look(), looks, len(looks))[-1]


def _forget_table(shared: SharedOptions) -> None:
    CACHE.tables.drop(store_key(shared))
    CACHE.heads.drop(store_key(shared))


def open_for_reading(shared: SharedOptions) -> OpenTable | None:
    """The store if anything was ever committed to it. Writes nothing."""
    store = open_store(shared)
    state = find_control_or_new(store)
    if state is None:
        return None
    return _opened(shared, store, state.control, writing=False)


def open_newest(shared: SharedOptions, seen: SeenHead | None = None) -> NewestCheckpoint | None:
    """The table at its newest checkpoint, None if nothing was ever committed. Writes nothing.

    Two requests if that is the one that this process, or the one that has sent ``seen``, found before.
    """
    known = seen or CACHE.seen.find(store_key(shared))
    newest = None if known is None else _find_again(shared, known)
    if newest is None:
        opened = open_for_reading(shared)
        if opened is None:
            return None
        head = find_head(opened.store, mac=opened.mac, store_id=opened.store_id)
        newest = NewestCheckpoint(opened, head)
    if newest.head is not None:
        CACHE.seen.put(store_key(shared), SeenHead.of(newest.head))
    return newest


def _find_again(shared: SharedOptions, known: SeenHead) -> NewestCheckpoint | None:
    """The head, looked for from a known one on; None if it must be looked for from the beginning.

    That is so if the table is another one by now, and if anything was pruned or rolled back while no
    newer checkpoint was committed: then the known one may be lost, and its number be taken by another.
    """
    store = open_store(shared)
    try:
        opened = _opened(shared, store, known.control, writing=False)
        cached = head_from_bytes(known.data, known.number, known.control, mac=opened.mac)
        head = find_head(store, cached=cached, mac=opened.mac, store_id=opened.store_id)
    except FormatError:
        return None
    if head is None or (head.number == known.number and head.control.counter != known.control.counter):
        return None
    return NewestCheckpoint(opened, head)


def look_at_head(shared: SharedOptions) -> Head | None:
    """The head, for a question before the first batch. Writes nothing, and probes nothing.

    A store without a control record is taken for a new one here. Whether it has lost that record is found
    out when the batch is planned, before any row is read.
    """
    store = open_store(shared)
    state = find_control(store)
    if state is None:
        return None
    opened = _opened(shared, store, state.control, writing=False)
    return find_head(store, mac=opened.mac, store_id=opened.store_id)


def _opened(
    shared: SharedOptions, store: ObjectStore, control: Control, *, writing: bool, is_new: bool = False
) -> OpenTable:
    ring, store_id = load_key_ring(shared.key_file) if shared.key_file else None, control.store_id
    cipher = choose_cipher(store, store_id, ring, SYSTEM_CLOCK, writing=writing)
    keyless = cipher is None and find_key_ring() is None
    mac = None if keyless else read_with(cipher)
    return OpenTable(store, store_id, cipher, mac, control, is_new)


IsLast = Callable[[CheckpointManifest], bool]
"""Whether a checkpoint is that of the batch before the one that is planned, so that none comes after it."""


def open_to_plan(
    shared: SharedOptions, *, begun: bool, is_last: IsLast | None = None
) -> tuple[OpenTable, Head | None]:
    """The table, and the head to plan the next batch on.

    A table that was deleted since this process saw it last is a new one for a run that starts. For a
    run that has committed to it (``begun``) that is an error.
    """
    remembered = CACHE.tables.find(store_key(shared)) is not None
    opened = open_for_writing(shared)
    if opened.is_new and not remembered:
        CACHE.heads.put(store_key(shared), None)
        return opened, None
    try:
        return opened, _find_planning_head(shared, opened, is_last)
    except FormatError:
        if begun or not remembered:
            raise
    _forget_table(shared)
    opened = open_for_writing(shared)
    return opened, _find_planning_head(shared, opened, is_last)


def _find_planning_head(shared: SharedOptions, opened: OpenTable, is_last: IsLast | None) -> Head | None:
    """The head to plan on, with one request when this run has committed one batch since the last plan.

    Reads upwards from the head of the last plan while the next checkpoint exists, or until ``is_last``
    knows that none does; Spark may have planned batches in between in another process. That nothing is
    above is proven by the commit, which creates the next checkpoint or loses the race. If there is no next
    one at all, the whole store is looked at: the checkpoints that this process knew may have been pruned,
    or the table may have been deleted.
    """
    head = known = CACHE.heads.find(store_key(shared))
    is_newest = False
    for _ in range(_MAX_CLIMB):
        if head is None or known is None:
            break
        found = find_manifest(opened.store, head.number + 1, mac=opened.mac)
        if found is None:
            is_newest = head.number > known.number
            break
        if found.manifest.run_id != known.manifest.run_id:
            break
        head = Head(found.manifest, found.sha256, head.control, found.data)
        is_newest = is_last is not None and is_last(found.manifest)
        if is_newest:
            break
    if not is_newest:
        head = find_head(opened.store, cached=head, mac=opened.mac, store_id=opened.store_id)
    CACHE.heads.put(store_key(shared), head)
    return head


def open_run(
    options: WriteOptions, opened: OpenTable, facts: WriterFacts, query: QueryInfo, on: Head | PlannedHead
) -> Run:
    """The run in this process, to claim a head or to commit on that of a plan.

    One that was taken over is fenced.
    """

    def new_run() -> Run:
        run = Run(
            opened.store,
            facts.run_id,
            query=query,
            cipher=opened.cipher,
            claimed=facts.begun,
            adopt_query=options.take_over,
        )
        if not _resume(run, opened, facts, on):
            run.refresh()
        return run

    return CACHE.runs.get((*store_key(options.shared), facts.run_id), new_run)


def _resume(run: Run, opened: OpenTable, facts: WriterFacts, on: Head | PlannedHead) -> bool:
    """Begin on a head that was found and checked a moment ago, here or where the batch was planned.

    To commit only if there is none yet, or it is this run's own: who else has the table must be found
    out, as a claim does by itself. What has changed since is noticed when the next number is created.
    """
    if isinstance(on, Head):
        if not facts.begun:
            run.resume(on.control, on.data, on.number)
        return not facts.begun
    if on.number == 0 and not facts.begun:
        run.resume(opened.control, None)
        return True
    found = find_manifest(opened.store, on.number, mac=opened.mac) if on.number else None
    if found is None or found.sha256 != on.sha256 or found.manifest.run_id != run.run_id:
        return False
    run.resume(opened.control, found.data, on.number)
    return True


def catch_up(run: Run, planned: PlannedHead) -> None:
    """Bring a run to the head that a batch was planned on, with one request where one will do.

    Spark may have committed the batches in between in another process; if another run did, this one is
    fenced. A head that is out of date after all is noticed when the next number is created.
    """
    number = planned.number
    if number == (0 if run.head is None else run.head.number):
        return
    if run.head is not None and number > run.head.number:
        found = find_manifest(run.store, number, mac=run.mac)
        if found is not None and found.sha256 == planned.sha256 and found.manifest.run_id == run.run_id:
            run.resume(run.head.control, found.data, number)
            return
    run.refresh()


def open_location(spec: LocationSpec, run_id: str = "") -> OpenLocation:
    """The location, opened once per process and run: between two runs it may be restored."""

    def opened() -> OpenLocation:
        location = spec.open()
        return OpenLocation(location, LocationLogs(location))

    return CACHE.locations.get((*location_key(spec), run_id), opened)


def location_key(spec: LocationSpec) -> _Key:
    """What tells checkpoint locations apart."""
    return (spec.url, tuple(sorted(spec.options.items())))
