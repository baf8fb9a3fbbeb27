"""A history at a glance: what each checkpoint is, cost and added, without reading its artifacts.

For listings, live views and reports. Manifests are read several at a time; one that is damaged is an
entry that says so, never an error, because whoever looks wants to see the rest. From the entries follow,
without the store, the pauses between checkpoints and which run wrote which part.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import Mac, check_version, decode_sealed, sha256_hex
from pyspark_checkpoint.format.fields import optional, short_text, signed_number, whole
from pyspark_checkpoint.format.keys import manifest_key, parse_attempt_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind, QueryInfo, RequestCount
from pyspark_checkpoint.format.manifest_codec import decode_query, decode_requests, manifest_fields
from pyspark_checkpoint.format.manifest_parts import SinkRecord, decode_sinks
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.format.summary import new_bytes_in
from pyspark_checkpoint.history.control import savepoints
from pyspark_checkpoint.history.head import HeadLocation, locate_head, lost_problem
from pyspark_checkpoint.history.lookup import is_visible, visible_numbers, was_removed_since
from pyspark_checkpoint.history.manifest_reader import find_record
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.parallel import DEFAULT_CONCURRENCY, iter_bounded


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint of a history. ``problem`` says why its manifest cannot be read, if so."""

    number: int
    savepoints: tuple[str, ...] = ()
    problem: str | None = None
    epoch: int | None = None
    batch_id: int | None = None
    timestamp_ms: int | None = None
    kind: ManifestKind | None = None
    total_size_bytes: int = 0
    new_bytes: int = 0
    """Bytes that were stored for this checkpoint; the rest it shares with earlier ones."""
    object_count: int = 0
    generation: int | None = None
    run_id: str = ""
    query: QueryInfo = field(default_factory=QueryInfo)
    requests: RequestCount = field(default_factory=RequestCount)
    staged_ms: int | None = None
    """From the first thing made for it until its manifest was written; None where nothing was staged."""
    batch_watermark_ms: int | None = None
    next_watermark_ms: int | None = None
    rollback_of: int | None = None
    sinks: tuple[SinkRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Overview:
    """The checkpoints that exist for readers, ascending, and where the history begins."""

    floor: int = 1
    entries: tuple[Entry, ...] = ()
    deleted: tuple[int, ...] = ()
    lost: Entry | None = None
    """The newest that was committed and is gone, if that is known. It is the last of ``entries`` too."""

    @property
    def newest(self) -> Entry | None:
        """The head."""
        left = [entry for entry in self.entries[-2:] if entry is not self.lost]
        return left[-1] if left else None

    @property
    def savepoint_names(self) -> tuple[str, ...]:
        """All savepoints, by name."""
        return tuple(sorted(name for entry in self.entries for name in entry.savepoints))


def read_overview(
    store: ObjectStore,
    *,
    mac: Mac | None = None,
    last: int | None = None,
    max_concurrent_reads: int = DEFAULT_CONCURRENCY,
) -> Overview:
    """Look at the whole history, or at its newest ``last`` checkpoints and every savepoint.

    What is pruned or deleted while it is read is left out.
    """
    where = locate_head(store)
    if where is None:
        return Overview()
    names = names_by_number(where.control)
    numbers = visible_numbers(where.control, where.number)
    if last is not None:
        newest = set(numbers[-last:]) if last > 0 else set[int]()
        numbers = [number for number in numbers if number in newest or number in names]

    def read(number: int) -> Entry | None:
        return _read_entry(store, where, number, names.get(number, ()), mac)

    entries = [entry for entry in iter_bounded(read, numbers, max_concurrent_reads) if entry is not None]
    lost = None
    if where.lost is not None:
        lost = Entry(where.lost, problem=lost_problem(where.lost, where.number))
        entries.append(lost)
    return Overview(
        floor=where.control.floor,
        entries=tuple(entries),
        deleted=tuple(sorted(where.control.deleted)),
        lost=lost,
    )


def names_by_number(control: Control) -> Mapping[int, tuple[str, ...]]:
    """The savepoints of each checkpoint that has any."""
    found: dict[int, list[str]] = {}
    for name, pin in savepoints(control).items():
        found.setdefault(pin.number, []).append(name)
    return {number: tuple(names) for number, names in found.items()}


def entry_of(manifest: CheckpointManifest, names: Sequence[str] = ()) -> Entry:
    """What there is to say of a manifest. Pure."""
    return entry_from_fields(manifest_fields(manifest), names)


def entry_from_fields(fields: Mapping[str, Any], names: Sequence[str] = ()) -> Entry:
    """The same from the stored fields: a tenth of the work for a manifest of many artifacts. Pure."""
    kind = ManifestKind(fields["kind"])
    repeats = kind in (ManifestKind.CLAIM, ManifestKind.ROLLBACK)
    return Entry(
        number=whole(fields["checkpoint_id"], "checkpoint_id"),
        savepoints=tuple(names),
        epoch=whole(fields["epoch"], "epoch"),
        batch_id=optional(whole, fields["batch_id"], "batch_id"),
        timestamp_ms=whole(fields["timestamp_ms"], "timestamp_ms"),
        kind=kind,
        total_size_bytes=whole(fields["total_size_bytes"], "total_size_bytes"),
        new_bytes=new_bytes_in(fields),
        object_count=len(fields["objects"]),
        generation=whole(fields["generation"], "generation"),
        run_id=short_text(fields["run_id"], "run_id"),
        query=decode_query(fields["query"]),
        requests=RequestCount(puts=1) if repeats else decode_requests(fields["requests"]),
        staged_ms=None if repeats else _staged_ms(fields),
        batch_watermark_ms=optional(signed_number, fields["batch_watermark_ms"], "batch_watermark_ms"),
        next_watermark_ms=optional(signed_number, fields["next_watermark_ms"], "next_watermark_ms"),
        rollback_of=optional(whole, fields["rollback_of"], "rollback_of"),
        sinks=decode_sinks(fields["sinks"]),
    )


def _staged_ms(fields: Mapping[str, Any]) -> int | None:
    """How long it took from the first id made for a checkpoint to its commit.

    Ids of version 7 carry their time; those of several machines are as exact as their clocks agree.
    """
    number = fields["checkpoint_id"]
    parsed = [parse_attempt_key(path) for path in fields["objects"]]
    ids = {found[0].uuid for found in parsed if found is not None and found[0].number == number}
    ids |= {fields["attempt"]} if fields["attempt"] else set()
    if not ids:
        return None
    begun_ms = min(uuid.UUID(text).int >> 80 for text in ids)
    return max(0, int(fields["timestamp_ms"]) - begun_ms)


def _read_entry(
    store: ObjectStore, where: HeadLocation, number: int, names: tuple[str, ...], mac: Mac | None
) -> Entry | None:
    data = where.data if number == where.number else find_record(store, manifest_key(number))
    if data is None:
        return None if was_removed_since(store, where, number) else Entry(number, names, "is missing")
    try:
        if not is_visible(where.control, number, sha256_hex(data)):
            return None
        entry = decode_entry(data, number, names, mac=mac)
    except FormatError as error:
        return None if was_removed_since(store, where, number) else Entry(number, names, error.message)
    return None if entry.kind is ManifestKind.TOMBSTONE else entry


def decode_entry(data: bytes, number: int, names: Sequence[str] = (), *, mac: Mac | None = None) -> Entry:
    """What there is to say of a manifest's bytes, whose digest is checked."""
    key = manifest_key(number)
    fields = decode_sealed(data, key, mac=mac)
    check_version(fields, key)
    try:
        entry = entry_from_fields(fields, names)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise FormatError(f"{key} lacks a field, or has one of another type") from None
    if entry.number != number:
        raise FormatError(f"{key} is the manifest of checkpoint {entry.number}")
    return entry


# --- pauses, and the part of each run: pure ---------------------------------------------------------


GAP_FACTOR = 5
GAP_FLOOR_MS = 60_000


@dataclass(frozen=True, slots=True)
class Gap:
    """A pause between two checkpoints that is far longer than usual, or numbers that are gone."""

    before: int
    after: int
    milliseconds: int
    missing: int
    """How many checkpoints between the two were pruned or deleted; then the pause says nothing."""


@dataclass(frozen=True, slots=True)
class RunSpan:
    """The part of a history that one run wrote."""

    generation: int
    run_id: str
    first: int
    last: int
    count: int
    begin_ms: int
    end_ms: int


def readable(entries: Iterable[Entry]) -> list[Entry]:
    """The entries whose manifest could be read."""
    return [entry for entry in entries if entry.problem is None and entry.timestamp_ms is not None]


def intervals_ms(entries: Sequence[Entry]) -> list[int]:
    """The pauses between checkpoints that follow each other."""
    known = readable(entries)
    return [
        (later.timestamp_ms or 0) - (earlier.timestamp_ms or 0)
        for earlier, later in pairwise(known)
        if later.number == earlier.number + 1
    ]


def usual_interval_ms(entries: Sequence[Entry]) -> int | None:
    """The median pause; None for less than two checkpoints in a row."""
    found = intervals_ms(entries)
    return int(median(found)) if found else None


def gap_limit_ms(entries: Sequence[Entry]) -> int:
    """From how long on a pause is a gap."""
    return max(GAP_FLOOR_MS, GAP_FACTOR * (usual_interval_ms(entries) or 0))


def find_gaps(overview: Overview) -> list[Gap]:
    """The pauses that are gaps and the places where numbers are gone, oldest first."""
    known, limit = readable(overview.entries), gap_limit_ms(overview.entries)
    found = []
    for earlier, later in pairwise(known):
        between = range(earlier.number + 1, later.number)
        missing = sum(1 for n in between if n < overview.floor or n in overview.deleted)
        pause = (later.timestamp_ms or 0) - (earlier.timestamp_ms or 0)
        if missing or (not between and pause > limit):
            found.append(Gap(earlier.number, later.number, pause, missing))
    return found


def find_run_spans(entries: Sequence[Entry]) -> list[RunSpan]:
    """The runs in the order in which they wrote, each with its part."""
    spans: list[RunSpan] = []
    for entry in readable(entries):
        generation, at = entry.generation or 0, entry.timestamp_ms or 0
        if spans and spans[-1].generation == generation and spans[-1].run_id == entry.run_id:
            last = spans[-1]
            spans[-1] = RunSpan(
                generation, last.run_id, last.first, entry.number, last.count + 1, last.begin_ms, at
            )
        else:
            spans.append(RunSpan(generation, entry.run_id, entry.number, entry.number, 1, at, at))
    return spans
